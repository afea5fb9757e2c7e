"""Edge offloading: benchmarks."""
