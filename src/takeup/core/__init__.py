"""Code shared by at least two domains: clocks, random streams, tables, statistics, reports, the control loop."""
