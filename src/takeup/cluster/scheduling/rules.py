"""The rules of a scheduler: queue order, placement, victim selection, and on which terms spot jobs run.

A scheduler is a choice from this list, not separate code: one compiled pass serves them all, in replays and on real
engines, and two schedulers differ in nothing but what is written here.
"""

from math import inf
from typing import NamedTuple

# Order of a queue: more GPUs per worker first, fewer GPUs in total first, or shorter time limits first.
BY_ARRIVAL, BY_SIZE, BY_FEWEST, BY_SHORTEST = range(4)
STOP, TRY_SMALLER = range(2)  # what happens behind a job that does not fit
BEST_FIT, PACKED, FRAGMENT, FRAGMENT_ARTIFACT, SHELTERED = range(5)  # which node
(
    NOBODY,  # no eviction
    TIGHTEST,  # node with the fewest GPUs after evicting all spot jobs; oldest run evicted first
    FRAGMENT_NODE,  # the same on the node that is fragmented least
    LARGEST_FIRST,  # tightest nodes; the victim with the smallest 1/GPUs first
    SMALLEST_FIRST,  # tightest nodes; the opposite
    TWO_POINTERS,  # tightest nodes; as GFS prints it
    FEWEST,  # all nodes; fewest victims, then those that started last
    NEWEST,  # whole pool; last started evicted first until the gang fits; then spare the unneeded
    CHEAPEST,  # all nodes; least price of the victims, found by looking at every subset
) = range(9)


class SchedulerRules(NamedTuple):
    """What a scheduler does. Durations are in seconds; 0 switches a rule with a duration off."""

    one_queue: bool = False  # spot and high-priority jobs share one queue
    high_order: int = BY_ARRIVAL
    spot_order: int = BY_ARRIVAL
    high_failure: int = STOP
    spot_failure: int = STOP
    score: int = BEST_FIT
    victims: int = NOBODY
    straight: bool = False  # high-priority jobs do not look for idle GPUs before they evict
    uses_quota: bool = False
    opportunistic: bool = False  # spot jobs beyond the quota may use idle GPUs, without a promise
    period_s: float = 3600.0  # a spot run that lasts this long is a success, and again after each period
    restart_small_s: float = 40.0  # up to eight GPUs
    restart_large_s: float = 60.0
    lease_s: float = 0.0  # interval at which every job is requeued and placed again
    lease_overhead_s: float = 0.0  # and pays this each time
    lease_moved_only: bool = False  # or only if it could not stay
    min_runtime_s: float = 0.0  # spot jobs are not evicted before this runtime
    ageing_s: float = 0.0  # a job that waits longer is served first
    notice_s: float = 0.0  # time that victims get to save their work
    wait_price: float = inf  # spot GPU-hours worth giving up for one hour less of waiting of a high-priority GPU
    moves: bool = False  # narrow spot jobs move elsewhere where a wider job then fits
    reserves: bool = False  # EASY backfill: nothing delays the first job that does not fit, by time limits
    high_share: float = 1.0  # of the pool, up to which high-priority jobs evict: their nominal quota
