"""Remedies for a slow job: fewer micro-batches for slow groups, swapped ranks, other node placement, and escalation.

rebalance.py     shares of the micro-batches
rank_swap.py     two ranks exchange their roles at a restart
topology.py      node placement and ring order
escalation.py    when a costlier remedy, such as a restart, pays off
"""
