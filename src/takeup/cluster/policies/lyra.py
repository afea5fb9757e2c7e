"""Lyra: evict where preemption costs least, a GPU of a job with n GPUs counting 1/n.

Li et al., EuroSys 2023. As published, GPUs of the largest jobs go first, so that few jobs are touched. The evaluation
of GFS sorted them the other way round, smallest jobs first, and let all spot jobs wait behind one that does not fit.
"""

from __future__ import annotations

from takeup.cluster.fleet.rules import BY_SIZE, LARGEST_FIRST, SMALLEST_FIRST, TRY_SMALLER, SchedulerRules

LYRA = SchedulerRules(
    high_order=BY_SIZE, spot_order=BY_SIZE, high_failure=TRY_SMALLER, victims=SMALLEST_FIRST, uses_quota=True
)
LYRA_PUBLISHED = LYRA._replace(victims=LARGEST_FIRST, spot_failure=TRY_SMALLER)
