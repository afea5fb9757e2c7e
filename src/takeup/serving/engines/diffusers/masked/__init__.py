"""Edits of a part of an image: only masked tokens are computed, the others are read from cached activations."""
