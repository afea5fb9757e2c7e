"""Numba kernels: nodes for a gang, all or nothing, from GPUs that are idle, or with victims.

A node is chosen by its score, the lowest first. `BEST_FIT` leaves the fewest idle GPUs. `PACKED` does too, then prefers
nodes that hold more of the same kind, then separates the kinds: spot jobs go where evictions are rare, high-priority
jobs where spot jobs are evicted anyway. `SHELTERED` prefers nodes with more
high-priority GPUs, then fits best: no request for a whole node can come there, so that spot jobs are left alone, and
other nodes stay whole or can be emptied. `FRAGMENT` raises the GPUs that a typical request cannot use the least.
"""

import numpy as np

from takeup.cluster.scheduling import counters, layout
from takeup.cluster.scheduling.layout import Fleet
from takeup.cluster.scheduling.rules import (
    BEST_FIT,
    CHEAPEST,
    FRAGMENT_ARTIFACT,
    NEWEST,
    PACKED,
    SHELTERED,
    SchedulerRules,
)
from takeup.cluster.scheduling.victims import (
    AGREED,
    CHOSEN,
    choose,
    freed,
    idle_in_plan,
    is_evictable,
    price,
    room_in_plan,
    unmark,
)
from takeup.core.arrays import Ints
from takeup.core.compiled import inlined, inner, kernel


@inlined
def _score(fleet: Fleet, node: int, job: int, idle: int, rule: int) -> float:
    it, asked = fleet.nodes[node], max(1, fleet.jobs[job].gpus)
    if rule == BEST_FIT:
        return float(idle)
    if rule == SHELTERED:
        return float(idle - 100.0 * (it.high_milli // 1000))
    if rule == PACKED:
        is_high = fleet.jobs[job].kind == 0
        same = it.high_milli if is_high else it.spot_milli
        calm = it.calm if is_high else 10_000.0 - it.calm
        return float(100.0 * (idle + 1) - same // 1000 + calm / 20_000.0)
    artifact = rule == FRAGMENT_ARTIFACT
    return counters.fragmentation(idle - asked, artifact) - counters.fragmentation(idle, artifact)


@inner
def find_node(fleet: Fleet, job: int, rule: int) -> int:
    """The best node for one more worker; -1 if it fits on none."""
    asked = fleet.jobs[job].gpus
    if asked == 0:
        if fleet.totals[layout.SHARE_ROOM_MILLI] >= fleet.jobs[job].milli:
            node = _fullest_shared(fleet, job)
            if node >= 0:
                return node
        asked = 1
    if fleet.totals[layout.FREE_GPUS] < asked or asked >= len(fleet.quotes) // 2:
        return -1
    if fleet.jobs[job].mask >= 0:
        return _best_score(fleet, job, asked, rule, 0, len(fleet.nodes))[0]
    row = len(fleet.quotes) + (len(fleet.quotes) // 2 if fleet.jobs[job].kind == 1 else 0) + asked
    best, lowest = -1, np.inf
    for block in range(fleet.best.shape[1]):
        it = fleet.best[row, block]
        if it.node == layout.STALE:
            it.node, it.first = _best_score(fleet, job, asked, rule, block * layout.BLOCK, (block + 1) * layout.BLOCK)
        if it.first < lowest:
            best, lowest = it.node, it.first
    return best


@inner
def _best_score(fleet: Fleet, job: int, asked: int, rule: int, begin: int, end: int) -> tuple[int, float]:
    """The best of these nodes for a worker without victims, and its score."""
    best, lowest = -1, np.inf
    for node in range(begin, min(end, len(fleet.nodes))):
        idle = counters.available(fleet, node)
        if idle >= asked and counters.may_use(fleet, job, node):
            score = _score(fleet, node, job, idle, rule)
            if score < lowest:
                best, lowest = node, score
    return best, lowest


@inner
def _fullest_shared(fleet: Fleet, job: int) -> int:
    best, least, milli = -1, 1000, fleet.jobs[job].milli
    for node in range(len(fleet.nodes)):
        it = fleet.nodes[node]
        has_shared_room = 1000 * (it.size - it.free) - it.high_milli - it.spot_milli >= milli
        if it.healthy and has_shared_room and counters.may_use(fleet, job, node):
            slot = counters.fullest_fit(fleet, node, milli)
            if slot >= 0 and fleet.share_room_milli[node, slot] < least:
                best, least = node, fleet.share_room_milli[node, slot]
    return best


@inner
def _num_slots(fleet: Fleet, job: int) -> int:
    """How many workers of a job of whole GPUs fit now; counting stops when there are enough."""
    count, asked = 0, fleet.jobs[job].gpus
    for node in range(len(fleet.nodes)):
        idle = counters.available(fleet, node)
        if idle >= asked and counters.may_use(fleet, job, node):
            count += idle // asked
            if count >= fleet.jobs[job].workers:
                break
    return count


@inner
def place_gang(fleet: Fleet, job: int, rule: int) -> bool:
    """Place all workers of a job, or none."""
    it = fleet.jobs[job]
    if fleet.totals[layout.FREE_GPUS] < it.gpus * it.workers:
        return False
    if it.gpus > 0 and it.workers > 1 and _num_slots(fleet, job) < it.workers:
        return False
    for worker in range(it.first_worker, it.first_worker + it.workers):
        node = find_node(fleet, job, rule)
        if node < 0:
            for seated in range(it.first_worker, worker):
                counters.remove_worker(fleet, seated)
            return False
        counters.place_worker(fleet, worker, node)
    return True


@kernel
def update_calmness(fleet: Fleet, last_hour: Ints, last_day: Ints) -> None:
    """Set how rarely each node evicts (at most 10,000) from its evictions in the last hour and the last day."""
    for node in range(len(fleet.nodes)):
        heat = 0.01 * 2.0 ** (0.8 * last_hour[node] + 0.2 * last_day[node])
        fleet.nodes[node].calm = 10_000.0 * max(0.0, 1.0 - heat)
        counters.forget_quotes(fleet, node)


# Eviction plan for a whole gang: no job is evicted before every worker has a node in the plan -------------------------
#
# How it works. Each worker in sequence takes the node where it costs least. Prices of nodes hold until the pass ends,
# for all workers and jobs that ask for the same. Whatever changes a node forgets its prices: workers that come or go,
# what is reserved there, and the notes of a plan, when they are made and when they are taken back. A victim that was
# agreed for one worker may free enough for others too; at the end victims that are not needed are spared.


@inner
def plan_gang(fleet: Fleet, job: int, now_s: float, rules: SchedulerRules) -> bool:
    """Find a node for each worker in `planned`, with victims marked as agreed; False if it cannot be done."""
    it = fleet.jobs[job]
    asked = max(1, it.gpus)
    if fleet.totals[layout.ALL_GPUS] - fleet.totals[layout.HIGH_GPUS] < asked * it.workers:
        return False
    if _num_possible(fleet, job, asked) < it.workers:
        return False
    if rules.victims == NEWEST:
        done = _plan_newest(fleet, job, asked, now_s, rules)
    else:
        done = _plan_nodes(fleet, job, asked, now_s, rules)
        if done and rules.victims == CHEAPEST and it.workers > 1:
            _put_back_unneeded(fleet, job, asked, now_s, rules)
    if not done:
        clear_plan(fleet)
    return done


@inner
def _num_possible(fleet: Fleet, job: int, asked: int) -> int:
    count = 0
    for node in range(len(fleet.nodes)):
        count += max(0, room_in_plan(fleet, node)) // asked if counters.may_use(fleet, job, node) else 0
        if count >= fleet.jobs[job].workers:
            break
    return count


@inner
def clear_plan(fleet: Fleet) -> None:
    """Clear all notes of a plan."""
    _clear_taken(fleet)
    for place in range(fleet.totals[layout.NUM_VICTIMS]):
        it = fleet.jobs[fleet.victims[place]]
        it.mark = 0
        for worker in range(it.first_worker, it.first_worker + it.workers):
            fleet.nodes[fleet.workers[worker].node].gain = 0
            counters.forget_quotes(fleet, fleet.workers[worker].node)
    fleet.totals[layout.NUM_VICTIMS] = 0


@inner
def _clear_taken(fleet: Fleet) -> None:
    for place in range(len(fleet.planned) if len(fleet.nodes) > 0 else 0):
        _untake(fleet, fleet.planned[place])


@inner
def _untake(fleet: Fleet, node: int) -> None:
    if fleet.nodes[node].taken != 0:
        fleet.nodes[node].taken = 0
        counters.forget_quotes(fleet, node)


@inner
def _plan_nodes(fleet: Fleet, job: int, asked: int, now_s: float, rules: SchedulerRules) -> bool:
    if fleet.totals[layout.HAS_QUOTES] == 0:
        fleet.quotes[:] = np.nan
        _forget_prices(fleet)
        fleet.totals[layout.HAS_QUOTES] = 1
    for worker in range(fleet.jobs[job].workers):
        node = _best_node(fleet, job, asked, now_s, rules)
        if node < 0:
            return False
        count, _first, _second = choose(fleet, node, asked, now_s, rules)
        for place in range(count):
            if fleet.jobs[fleet.scratch[0, place]].mark == CHOSEN:
                _agree(fleet, fleet.scratch[0, place])
        fleet.nodes[node].taken += asked
        counters.forget_quotes(fleet, node)
        fleet.planned[worker] = node
    return True


@inner
def _best_node(fleet: Fleet, job: int, asked: int, now_s: float, rules: SchedulerRules) -> int:
    row = asked + (len(fleet.quotes) // 2 if fleet.totals[layout.MOVED_BELOW] > 0 else 0)
    if fleet.jobs[job].mask >= 0:
        return _cheapest(fleet, job, row, now_s, rules, 0, len(fleet.nodes))[0]
    best, lowest, lowest_second = -1, np.inf, np.inf
    for block in range(fleet.best.shape[1]):
        it, begin = fleet.best[row, block], block * layout.BLOCK
        if it.node == layout.STALE:
            it.node, it.first, it.second = _cheapest(fleet, job, row, now_s, rules, begin, begin + layout.BLOCK)
        if it.first < lowest or (it.first == lowest < np.inf and it.second < lowest_second):
            best, lowest, lowest_second = it.node, it.first, it.second
    return best


@inner
def _forget_prices(fleet: Fleet) -> None:
    for row in range(len(fleet.quotes)):
        for block in range(fleet.best.shape[1]):
            fleet.best[row, block].node = layout.STALE


@inner
def _cheapest(
    fleet: Fleet, job: int, row: int, now_s: float, rules: SchedulerRules, begin: int, end: int
) -> tuple[int, float, float]:
    """The cheapest of these nodes for a worker, and its two prices."""
    best, lowest, lowest_second = -1, np.inf, np.inf
    asked, quotes = row % (len(fleet.quotes) // 2), fleet.quotes[row]
    for node in range(begin, min(end, len(quotes))):
        if not counters.may_use(fleet, job, node):
            continue
        if np.isnan(quotes[node, 0]):
            count, quotes[node, 0], quotes[node, 1] = choose(fleet, node, asked, now_s, rules)
            unmark(fleet, count)
        first, second = quotes[node, 0], quotes[node, 1]
        if first < lowest or (first == lowest < np.inf and second < lowest_second):
            best, lowest, lowest_second = node, first, second
    return best, lowest, lowest_second


@inner
def _agree(fleet: Fleet, victim: int) -> None:
    fleet.victims[fleet.totals[layout.NUM_VICTIMS]] = victim
    fleet.totals[layout.NUM_VICTIMS] += 1
    _mark(fleet, victim, AGREED)


@inner
def _mark(fleet: Fleet, victim: int, mark: int) -> None:
    """Mark a victim of the plan, or one that is spared after all."""
    it = fleet.jobs[victim]
    it.mark = mark
    for worker in range(it.first_worker, it.first_worker + it.workers):
        node = fleet.workers[worker].node
        fleet.nodes[node].gain = freed(fleet, node, AGREED)
        counters.forget_quotes(fleet, node)


@inner
def _fits(fleet: Fleet, job: int, asked: int) -> bool:
    count = 0
    for node in range(len(fleet.nodes)):
        count += max(0, idle_in_plan(fleet, node)) // asked if counters.may_use(fleet, job, node) else 0
        if count >= fleet.jobs[job].workers:
            return True
    return False


@inner
def _plan_newest(fleet: Fleet, job: int, asked: int, now_s: float, rules: SchedulerRules) -> bool:
    starts = np.empty(fleet.totals[layout.NUM_RUNNING])
    jobs = np.sort(fleet.running[: fleet.totals[layout.NUM_RUNNING]])
    for place in range(len(jobs)):
        starts[place] = -fleet.jobs[jobs[place]].start_s
    order = jobs[np.argsort(starts, kind="mergesort")]
    num_looked = 0
    while num_looked < len(order) and not _fits(fleet, job, asked):
        if is_evictable(fleet, order[num_looked], now_s, rules):
            _agree(fleet, order[num_looked])
        num_looked += 1
    if not _fits(fleet, job, asked):
        return False
    for place in range(num_looked - 1, -1, -1):
        if fleet.jobs[order[place]].mark == AGREED:
            _put_back_if_spare(fleet, order[place], job, asked)
    _seat_tightly(fleet, job, asked)
    return True


@inner
def reserve(fleet: Fleet, job: int) -> tuple[float, Ints]:
    """When a job fits at the latest by the time limits of those that run, and its nodes then (EASY backfill)."""
    asked, running = max(1, fleet.jobs[job].gpus), np.sort(fleet.running[: fleet.totals[layout.NUM_RUNNING]])
    ends_s = np.empty(len(running))
    for place in range(len(running)):
        ends_s[place] = fleet.jobs[running[place]].start_s + fleet.jobs[running[place]].limit_s
    shadow_s, seats = np.inf, fleet.planned[:0].copy()
    for place in np.argsort(ends_s, kind="mergesort"):
        _agree(fleet, running[place])
        if _fits(fleet, job, asked):
            _seat_tightly(fleet, job, asked)
            shadow_s, seats = ends_s[place], fleet.planned[: fleet.jobs[job].workers].copy()
            break
    clear_plan(fleet)
    return shadow_s, seats


@inner
def hold_back(fleet: Fleet, seats: Ints, gpus: int) -> None:
    """Keep GPUs of these nodes free while a job that ends after the reservation begins is tried."""
    for place in range(len(seats)):
        counters.keep_free(fleet, seats[place], gpus)


@inner
def _put_back_if_spare(fleet: Fleet, victim: int, job: int, asked: int) -> bool:
    _mark(fleet, victim, 0)
    if _fits(fleet, job, asked):
        return True
    _mark(fleet, victim, AGREED)
    return False


@inner
def _put_back_unneeded(fleet: Fleet, job: int, asked: int, now_s: float, rules: SchedulerRules) -> None:
    """Spare victims that later ones made redundant, most expensive first; then place the gang on the tightest nodes."""
    _clear_taken(fleet)
    victims = agreed_victims(fleet)
    costs = np.empty(len(victims))
    for place in range(len(victims)):
        costs[place] = -price(fleet, victims[place], now_s, rules)
    order = victims[np.argsort(costs, kind="mergesort")]
    num_spared = 0
    for place in range(len(order)):
        num_spared += _put_back_if_spare(fleet, order[place], job, asked)
    if num_spared > 0:
        _seat_tightly(fleet, job, asked)
        return
    for worker in range(fleet.jobs[job].workers):
        fleet.nodes[fleet.planned[worker]].taken += asked


@inner
def can_move(fleet: Fleet, victims: Ints) -> bool:
    """Whether all victims of the plan fit on GPUs that are idle after it."""
    fits = _seat_victims(fleet, victims)
    for node in range(len(fleet.nodes)):
        _untake(fleet, node)
    return fits


@inner
def _seat_victims(fleet: Fleet, victims: Ints) -> bool:
    for place in range(len(victims)):
        it = fleet.jobs[victims[place]]
        for _ in range(it.workers):
            node = _tightest(fleet, victims[place], max(1, it.gpus))
            if node < 0:
                return False
            fleet.nodes[node].taken += max(1, it.gpus)
    return True


@inner
def agreed_victims(fleet: Fleet) -> Ints:
    """The victims of the plan, by number."""
    found = np.empty(fleet.totals[layout.NUM_VICTIMS], np.int64)
    count = 0
    for place in range(len(found)):
        if fleet.jobs[fleet.victims[place]].mark == AGREED:
            found[count] = fleet.victims[place]
            count += 1
    return np.sort(found[:count])


@inner
def _seat_tightly(fleet: Fleet, job: int, asked: int) -> None:
    for worker in range(fleet.jobs[job].workers):
        node = _tightest(fleet, job, asked)
        fleet.nodes[node].taken += asked
        fleet.planned[worker] = node


@inner
def _tightest(fleet: Fleet, job: int, asked: int) -> int:
    best, least = -1, 1_000_000
    for node in range(len(fleet.nodes)):
        idle = idle_in_plan(fleet, node)
        if asked <= idle < least and counters.may_use(fleet, job, node):
            best, least = node, idle
    return best
