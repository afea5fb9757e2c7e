"""Readers and generators of training data.

profiles.py     profiles and schedules: files, random draws
slowdowns.py    iteration times with known slowdowns, and scores of detectors on them
"""
