"""Optimizations of network calls on a device: packed weights, compiled regions, CUDA graphs, streams."""
