"""The rules of a scheduler: who goes first, where to, who makes room, and on which terms spot jobs run.

A scheduler is a choice from this list, not code of its own: one compiled pass serves them all, in replays and on real
engines, and two schedulers differ in nothing but what is written here.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = [
    "BEST_FIT",
    "BY_ARRIVAL",
    "BY_SIZE",
    "CHEAPEST",
    "FEWEST",
    "FRAGMENT",
    "FRAGMENT_ARTIFACT",
    "FRAGMENT_NODE",
    "LARGEST_FIRST",
    "NEWEST",
    "NOBODY",
    "PACKED",
    "PACKED_BLIND",
    "SHELTERED",
    "SINCE_START",
    "SMALLEST_FIRST",
    "STOP",
    "TIGHTEST",
    "TRY_SMALLER",
    "TWO_POINTERS",
    "Rules",
]

BY_ARRIVAL, BY_SIZE = range(2)  # order of a queue; by size: more GPUs per worker first
STOP, TRY_SMALLER = range(2)  # what happens behind a job that does not fit
BEST_FIT, PACKED, FRAGMENT, FRAGMENT_ARTIFACT, PACKED_BLIND, SHELTERED = range(6)  # which node
(
    NOBODY,  # nobody is evicted
    TIGHTEST,  # node with the least room that could be made; whoever started first goes first
    FRAGMENT_NODE,  # the same on the node that is fragmented least
    LARGEST_FIRST,  # tightest nodes; the victim with the smallest 1/GPUs first
    SMALLEST_FIRST,  # tightest nodes; the opposite
    TWO_POINTERS,  # tightest nodes; as GFS prints it
    FEWEST,  # all nodes; fewest victims, then those that started last
    NEWEST,  # whole pool; who started last goes first, until the gang fits; then put back who is not needed
    CHEAPEST,  # all nodes; least price of the victims, found by looking at every subset
    SINCE_START,  # as TWO_POINTERS, but all work since the start counts as lost
) = range(10)


class Rules(NamedTuple):
    """What a scheduler does. Durations are in seconds; 0 switches a rule with a duration off."""

    one_queue: bool = False  # spot and high-priority jobs wait in one line
    high_order: int = BY_ARRIVAL
    spot_order: int = BY_ARRIVAL
    high_failure: int = STOP
    spot_failure: int = STOP
    score: int = BEST_FIT
    victims: int = NOBODY
    straight: bool = False  # high-priority jobs do not look for idle GPUs before they evict
    uses_quota: bool = False
    counts_workers: bool = True  # a gang takes the GPUs of all its workers out of the quota, or of one only
    opportunistic: bool = False  # spot jobs beyond the quota may use idle GPUs, without a promise
    period_s: float = 3600.0  # a spot run that lasts so long is a success, and again after each further period
    restart_small_s: float = 40.0  # up to eight GPUs
    restart_large_s: float = 60.0
    lease_s: float = 0.0  # every job is put back and placed again so often
    lease_overhead_s: float = 0.0  # and pays this each time
    lease_moved_only: bool = False  # or only if it could not stay
    min_runtime_s: float = 0.0  # spot jobs are safe for so long
    cool_down_s: float = 0.0  # an evicted job waits so long before it runs without a promise again
    max_evictions: int = 1_000_000  # jobs evicted so often are the last to be evicted again
    ageing_s: float = 0.0  # who waits longer goes first
    reserve_s: float = 0.0  # who waits longer still is overtaken by nobody
    notice_s: float = 0.0  # victims are asked to save their work, and given so long
    patience_s: float = 0.0  # high-priority jobs wait so long rather than leave many GPUs idle by their evictions
    patience_gpus: float = 0.0  # more than so many, held by victims beyond what the job itself takes
    victim_price_gpu_s: float = 0.0  # of every eviction, beside the work that is lost
    repeat_price_share: float = 0.0  # more for every earlier eviction
    fragment_price_gpu_s: float = 0.0  # of a GPU that becomes useless for a typical request
