"""The tour: every system on a workload where it matters, as nine lines and one page of cards."""
