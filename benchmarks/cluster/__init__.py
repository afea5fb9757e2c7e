"""GPU scheduling: benchmarks."""
