"""Chronus: leases instead of evictions. Every 20 minutes all jobs are put back and placed again, high priority first.

Gao et al., SoCC 2021, as GFS evaluated it: each job pays 120 s at the end of each lease. As published, a lease that is
renewed costs nothing, and only a job that had to wait pays when it comes back. A spot run is a success every 300 s.
"""

from __future__ import annotations

from takeup.cluster.fleet.rules import BY_SIZE, TRY_SMALLER, SchedulerRules

CHRONUS = SchedulerRules(
    high_order=BY_SIZE,
    spot_order=BY_SIZE,
    high_failure=TRY_SMALLER,
    spot_failure=TRY_SMALLER,
    period_s=300.0,
    lease_s=1200.0,
    lease_overhead_s=120.0,
)
CHRONUS_PUBLISHED = CHRONUS._replace(lease_moved_only=True)
