"""Find what makes a training job slow, and what to do about it, using only the times of its communication calls.

`watcher` is the whole loop. `iterations` finds iterations in a log of calls, `covariates` adjusts for unusual ones,
`changes` detects when they became slower, `locate` which rank (by `accounts` of its time) or link (`links`) it is,
`passes` schedules link tests to confirm it. `rebalance` gives a slow group less work, `topology` moves reductions off
slow links, `escalate` decides when a costlier remedy pays off. `published` holds published rules, for comparison.
"""
