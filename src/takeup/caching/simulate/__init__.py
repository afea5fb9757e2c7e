"""Simulators: `plain` runs a workload task by task with policy objects, `compiled` replays it on arrays with numba."""
