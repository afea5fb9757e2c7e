"""Pipelines and stragglers: benchmarks."""
