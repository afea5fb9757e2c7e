"""Cache eviction: benchmarks."""
