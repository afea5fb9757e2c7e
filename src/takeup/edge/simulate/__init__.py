"""Simulation of tasks that arrive over time at one site."""
