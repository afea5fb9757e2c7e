"""takeup: take up the slack in shared resources, from the edge to the GPU fleet."""

__version__ = "0.1.0"
