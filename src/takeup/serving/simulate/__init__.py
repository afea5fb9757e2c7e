"""Discrete-event simulation of serving, in virtual time: queues, adapter caches, edits."""
