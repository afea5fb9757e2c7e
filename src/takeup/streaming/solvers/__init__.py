"""Solvers of the chain that a video sees: `fluid`, `diffusion`, `sparse`."""
