"""Requests with adapters: drawn from published measurements, or read from a published trace."""
