"""Classifier-free guidance over two ranks: each computes one branch of every request, and both get the result."""
