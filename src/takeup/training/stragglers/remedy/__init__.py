"""Remedies for a slow job, all of them pure.

remediation.py   what to do about a slowdown: the state machine that the watcher carries out
restart.py       the restart decision: when one pays off, and which two ranks it should swap
rebalance.py     shares of the micro-batches
"""
