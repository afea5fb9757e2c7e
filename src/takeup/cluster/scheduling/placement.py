"""Numba kernels: nodes for a gang, all or nothing, from GPUs that are idle.

A node is chosen by its score, the lowest first. `BEST_FIT` leaves the fewest idle GPUs. `PACKED` does too, then prefers
nodes that hold more of the same kind, then separates the kinds: spot jobs go where evictions are rare, high-priority
jobs where spot jobs are evicted anyway; `PACKED_BLIND` does not see evictions. `SHELTERED` fits best too, then prefers
nodes with more high-priority GPUs: no request for a whole node can come there, so that spot jobs are left alone, and
other nodes stay whole or can be emptied. `FRAGMENT` raises the GPUs that a typical request cannot use the least.
"""

import numpy as np

from takeup.cluster.scheduling.counters import available, fullest_fit, place_worker, remove_worker
from takeup.cluster.scheduling.layout import FREE_GPUS, SHARE_ROOM_MILLI, Fleet
from takeup.cluster.scheduling.rules import BEST_FIT, FRAGMENT_ARTIFACT, PACKED, PACKED_BLIND, SHELTERED
from takeup.core.arrays import Ints
from takeup.core.compiled import inner, kernel


@inner
def fragmentation(free: int, artifact: bool) -> float:
    """How many of `free` GPUs on a node a typical request cannot use (Weng et al., ATC 2023).

    Of all requests 10 % ask for two GPUs, 5 % for four and 50 % for eight; those for one can use any.
    """
    if artifact:
        return 0.10 * (free - free // 2) + 0.05 * (free - free // 4) + 0.50 * (free - free // 8)
    return 0.10 * (free % 2) + 0.05 * (free % 4) + 0.50 * (free % 8)


@inner
def _score(fleet: Fleet, node: int, job: int, idle: int, rule: int) -> float:
    it, asked = fleet.nodes[node], max(1, fleet.jobs[job].gpus)
    if rule == BEST_FIT:
        return float(idle)
    if rule == SHELTERED:
        return float(100.0 * (idle + 1) - it.high_milli // 1000)
    if rule in (PACKED, PACKED_BLIND):
        is_high = fleet.jobs[job].kind == 0
        same = it.high_milli if is_high else it.spot_milli
        calm = it.calm if is_high else 10_000.0 - it.calm
        return float(100.0 * (idle + 1) - same // 1000 + calm / 20_000.0)
    artifact = rule == FRAGMENT_ARTIFACT
    return fragmentation(idle - asked, artifact) - fragmentation(idle, artifact)


@inner
def find_node(fleet: Fleet, job: int, rule: int) -> int:
    """The best node for one more worker; -1 if it fits on none."""
    asked = fleet.jobs[job].gpus
    if asked == 0:
        if fleet.totals[SHARE_ROOM_MILLI] >= fleet.jobs[job].milli:
            node = _fullest_shared(fleet, fleet.jobs[job].milli)
            if node >= 0:
                return node
        asked = 1
    if fleet.totals[FREE_GPUS] < asked:
        return -1
    best, lowest = -1, np.inf
    for node in range(len(fleet.nodes)):
        idle = available(fleet, node)
        if idle >= asked:
            score = _score(fleet, node, job, idle, rule)
            if score < lowest:
                best, lowest = node, score
    return best


@inner
def _fullest_shared(fleet: Fleet, milli: int) -> int:
    best, least = -1, 1000
    for node in range(len(fleet.nodes)):
        it = fleet.nodes[node]
        has_shared_room = 1000 * (it.size - it.free) - it.high_milli - it.spot_milli >= milli
        if it.healthy and has_shared_room:
            slot = fullest_fit(fleet, node, milli)
            if slot >= 0 and fleet.share_room_milli[node, slot] < least:
                best, least = node, fleet.share_room_milli[node, slot]
    return best


@inner
def num_slots(fleet: Fleet, asked: int, enough: int) -> int:
    """How many workers of `asked` whole GPUs fit now; counting stops at `enough`."""
    count = 0
    for node in range(len(fleet.nodes)):
        idle = available(fleet, node)
        if idle >= asked:
            count += idle // asked
            if count >= enough:
                break
    return count


@inner
def place_gang(fleet: Fleet, job: int, rule: int) -> bool:
    """Place all workers of a job, or none."""
    it = fleet.jobs[job]
    if fleet.totals[FREE_GPUS] < it.gpus * it.workers:
        return False
    if it.gpus > 0 and it.workers > 1 and num_slots(fleet, it.gpus, it.workers) < it.workers:
        return False
    for worker in range(it.first_worker, it.first_worker + it.workers):
        node = find_node(fleet, job, rule)
        if node < 0:
            for seated in range(it.first_worker, worker):
                remove_worker(fleet, seated)
            return False
        place_worker(fleet, worker, node)
    return True


@kernel
def update_calmness(fleet: Fleet, last_hour: Ints, last_day: Ints) -> None:
    """Set how rarely each node evicts (at most 10,000) from its evictions in the last hour and the last day."""
    for node in range(len(fleet.nodes)):
        heat = 0.01 * 2.0 ** (0.8 * last_hour[node] + 0.2 * last_day[node])
        fleet.nodes[node].calm = 10_000.0 * max(0.0, 1.0 - heat)
