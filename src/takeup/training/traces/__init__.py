"""Readers and generators of training data.

profiles.py     profiles and schedules: files, random draws
slowdowns.py    iteration times with known slowdowns
operations.py   durations of the operations of a recorded job
"""
