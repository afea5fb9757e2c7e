"""GFS: high-priority jobs by size, spot jobs inside a quota that a forecast allows, evictions where they cost least.

Duan et al., ASPLOS 2026, the preemptive task scheduler. `GFS_PUBLISHED` is the scheduler as printed: victims on the
tightest nodes, spot jobs only inside the quota. `GFS` goes further. Spot jobs beyond the quota run on idle GPUs without
a promise, so that a cautious forecast leaves nothing idle; they are evicted first. Victims are searched on all nodes
and in all combinations. Spot jobs are placed on nodes with high-priority jobs, which no request for a whole node can
use. Where a far larger gang would have to be evicted for a high-priority job, that job waits for some hours first: the
GPUs that the gang frees beyond its need would be idle until as much is free again. An evicted job may run again at once
where it fits, so that no job waits while GPUs are idle, but its price rises with each eviction; a job that waits too
long is served first.

`GFS_NOTICE` asks victims to save their work before eviction. `GFS_PROMISED` runs no spot job beyond the quota, as the
printed one does. `GFS_ARTIFACT` is the released code, for comparison: it ignores where evictions happened, counts work
as lost since the start and not since the last checkpoint, and counts one worker of a gang against the quota (its quota
never learns from evictions either). Gangs stay whole here; there they did not.
"""

from __future__ import annotations

from takeup.cluster.fleet.rules import (
    BEST_FIT,
    BY_SIZE,
    CHEAPEST,
    PACKED,
    PACKED_BLIND,
    SHELTERED,
    SINCE_START,
    TIGHTEST,
    TRY_SMALLER,
    TWO_POINTERS,
    SchedulerRules,
)

GFS_PUBLISHED = SchedulerRules(
    high_order=BY_SIZE,
    spot_order=BY_SIZE,
    high_failure=TRY_SMALLER,
    spot_failure=TRY_SMALLER,
    score=PACKED,
    victims=TWO_POINTERS,
    uses_quota=True,
)
GFS_ARTIFACT = GFS_PUBLISHED._replace(score=PACKED_BLIND, victims=SINCE_START, counts_workers=False)
GFS_PUBLISHED_SIMPLE_PLACE = GFS_PUBLISHED._replace(score=BEST_FIT)
GFS_PUBLISHED_SIMPLE_PREEMPT = GFS_PUBLISHED._replace(victims=TIGHTEST)
GFS = GFS_PUBLISHED._replace(
    score=SHELTERED,
    victims=CHEAPEST,
    opportunistic=True,
    max_evictions=3,
    ageing_s=6 * 3600.0,
    patience_s=4 * 3600.0,
    patience_gpus=16.0,
    victim_price_gpu_s=7200.0,
    repeat_price_share=0.5,
    fragment_price_gpu_s=600.0,
)
GFS_NOTICE = GFS._replace(notice_s=60.0)
GFS_PROMISED = GFS._replace(opportunistic=False)
GFS_SIMPLE_PLACE = GFS._replace(score=BEST_FIT)
GFS_SIMPLE_PREEMPT = GFS._replace(victims=TIGHTEST)
