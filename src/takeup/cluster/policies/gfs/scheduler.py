"""GFS: high-priority jobs by size, spot jobs inside a quota that a forecast allows, evictions where they cost least.

Duan et al., ASPLOS 2026, the preemptive task scheduler. `GFS_PUBLISHED` is the scheduler as printed: victims on the
tightest nodes, spot jobs only inside the quota. `GFS` goes further. Spot jobs beyond the quota run on idle GPUs
without a promise, so that a cautious forecast leaves nothing idle; they are evicted first. Victims are looked
for on all nodes and in all combinations. An evicted job waits a while before it runs without a promise again, costs
more each time, and whoever waits for long goes first.
`GFS_NOTICE` asks victims to save their work before they leave.
"""

from __future__ import annotations

from takeup.cluster.fleet.rules import (
    BEST_FIT,
    BY_SIZE,
    CHEAPEST,
    PACKED,
    TIGHTEST,
    TRY_SMALLER,
    TWO_POINTERS,
    Rules,
)

__all__ = ["GFS", "GFS_NOTICE", "GFS_PUBLISHED", "GFS_SIMPLE_PLACE", "GFS_SIMPLE_PREEMPT"]

GFS_PUBLISHED = Rules(
    high_order=BY_SIZE,
    spot_order=BY_SIZE,
    high_failure=TRY_SMALLER,
    spot_failure=TRY_SMALLER,
    score=PACKED,
    victims=TWO_POINTERS,
    uses_quota=True,
)
GFS = GFS_PUBLISHED._replace(
    victims=CHEAPEST,
    opportunistic=True,
    cool_down_s=600.0,
    max_evictions=3,
    ageing_s=6 * 3600.0,
    victim_price_gpu_s=7200.0,
    repeat_price_share=0.5,
    fragment_price_gpu_s=600.0,
)
GFS_NOTICE = GFS._replace(notice_s=60.0)
GFS_SIMPLE_PLACE = GFS._replace(score=BEST_FIT)
GFS_SIMPLE_PREEMPT = GFS._replace(victims=TIGHTEST)
