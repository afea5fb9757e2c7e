"""Edits of a part of an image: only masked tokens are computed, the others are taken from what a template left."""
