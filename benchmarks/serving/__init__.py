"""Diffusion serving: benchmarks."""
