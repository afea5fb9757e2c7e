"""Masked image editing: only masked tokens are computed, the others are read from cached activations (templates)."""
