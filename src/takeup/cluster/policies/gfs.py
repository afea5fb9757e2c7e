"""GFS (Duan et al., ASPLOS 2026): high-priority jobs by size, spot jobs within a forecast quota, cheapest evictions."""

from takeup.cluster.policies.baselines import FIFO
from takeup.cluster.scheduling import rules
from takeup.cluster.scheduling.rules import SchedulerRules

GFS_PUBLISHED = SchedulerRules(
    high_order=rules.BY_SIZE,
    spot_order=rules.BY_SIZE,
    high_failure=rules.TRY_SMALLER,
    spot_failure=rules.TRY_SMALLER,
    score=rules.PACKED,
    victims=rules.TWO_POINTERS,
    uses_quota=True,
)
GFS_PUBLISHED_SIMPLE_PLACE = GFS_PUBLISHED._replace(score=rules.BEST_FIT)
GFS_PUBLISHED_SIMPLE_PREEMPT = GFS_PUBLISHED._replace(victims=rules.TIGHTEST)
GFS = GFS_PUBLISHED._replace(
    high_order=rules.BY_FEWEST,
    score=rules.SHELTERED,
    victims=rules.CHEAPEST,
    opportunistic=True,
    ageing_s=6 * 3600.0,
    wait_price=10.0,
    moves=True,
)
GFS_NOTICE = GFS._replace(notice_s=60.0, wait_price=30.0)  # what is saved first costs little to evict
GFS_PROMISED = GFS._replace(opportunistic=False)
GFS_SIMPLE_PLACE = GFS._replace(score=rules.BEST_FIT)
GFS_SIMPLE_PREEMPT = GFS._replace(victims=rules.TIGHTEST)


def at_price(scheduler: SchedulerRules, price: float) -> SchedulerRules:
    """The rules at another price of waiting; at 0 no job goes before another, which is FIFO with promises."""
    if price > 0:
        return scheduler._replace(wait_price=price)
    return FIFO._replace(uses_quota=True, opportunistic=scheduler.opportunistic, wait_price=0.0)
