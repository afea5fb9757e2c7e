"""Find what makes a training job slow, and what to do about it, from nothing but the times of its messages.

`watcher` is the whole loop. `iterations` finds iterations in a log of calls, `covariates` what is special about some,
`changes` when they became slower, `locate` which rank (by `accounts` of its time) or link (`links`) it is, `passes` how
to confirm it in few tests. `rebalance` gives a slow group less work, `topology` moves reductions off slow links,
`escalate` says when a costlier remedy pays. `published` holds rules of others, for comparison.
"""
