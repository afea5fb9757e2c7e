"""Stragglers of a training job: which rank or link is slow, what that costs, and what to do about it (FALCON).

    model.py    communication logs of ranks, slowdown events and suspects
    detect/     change points in iteration times; the detector that consumes call logs
    locate/     which rank or link causes a slowdown, from the times of its calls
    remedy/     rebalancing, rank swaps, node placement, and when a costlier remedy pays
    watch/      attaches to a PyTorch job, records calls in ring buffers, and acts

Only the times of communication calls are used.
"""
