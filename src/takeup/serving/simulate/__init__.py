"""Serving in virtual time."""
