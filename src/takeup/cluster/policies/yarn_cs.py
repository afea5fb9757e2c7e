"""YARN's Capacity Scheduler: strict queues, best fit blind to the kinds of jobs.

As GFS evaluated it (Duan et al., ASPLOS 2026), a high-priority job goes straight to the node with the least room that
could be made, and evicts there whoever started first. As published, it looks for idle GPUs first, and evicts the
youngest.
"""

from __future__ import annotations

from takeup.cluster.fleet.rules import NEWEST, TIGHTEST, Rules

__all__ = ["YARN_CS", "YARN_CS_PUBLISHED"]

YARN_CS = Rules(victims=TIGHTEST, straight=True, uses_quota=True)
YARN_CS_PUBLISHED = Rules(victims=NEWEST, uses_quota=True)
