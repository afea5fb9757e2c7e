"""YARN's Capacity Scheduler: strict queues, best fit blind to the kinds of jobs.

As GFS evaluated it (Duan et al., ASPLOS 2026), a high-priority job goes straight to the node with the fewest GPUs that
could be freed, and evicts the oldest runs there. As published, it looks for idle GPUs first, and evicts the youngest,
and an application that does not fit now does not block those behind it.
"""

from __future__ import annotations

from takeup.cluster.fleet.rules import NEWEST, TIGHTEST, TRY_SMALLER, SchedulerRules

YARN_CS = SchedulerRules(victims=TIGHTEST, straight=True, uses_quota=True)
YARN_CS_PUBLISHED = SchedulerRules(high_failure=TRY_SMALLER, spot_failure=TRY_SMALLER, victims=NEWEST, uses_quota=True)
