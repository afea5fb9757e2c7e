"""Readers and generators of training data.

profiles.py         profiles and schedules: files, random draws
operations.py       durations of the operations of a recorded job
profiler.py         calls of all ranks in traces of PyTorch's profiler
flight_recorder.py  the call in which a job hangs, from dumps of the Flight Recorder
"""
