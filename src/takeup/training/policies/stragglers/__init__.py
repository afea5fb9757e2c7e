"""Find what makes a training job slow, and what to do about it, from nothing but the times of its messages.

`iterations` finds the iterations in a log of calls, `changes` when they became slower, `locate` which rank or link it
is, `passes` how to confirm it in few tests. `rebalance` gives a slow group less work, `escalate` says when a costlier
remedy pays.
"""
