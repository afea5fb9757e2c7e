"""Guidance over two ranks: each computes one branch of every request, and both know the result."""
