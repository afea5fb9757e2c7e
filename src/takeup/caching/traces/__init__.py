"""Where workloads come from: trace files, Spark event logs, generators; all end in a `Workload` or a `FlatTrace`."""
