"""Start-up delay and stalls: benchmarks."""
