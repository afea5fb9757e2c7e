"""Large-neighbourhood search: remove some devices of a plan, let devices join at the prices, fill up, keep the better.

How it works. A plan has a sequence of runs for every core, each as late as the one after it allows. A device joins the
core where that costs the others least, with the group of free subcarriers that is cheapest in energy and prices
together. Devices ask to join in the order of what they would gain at the prices, with noise. At the end free
subcarriers go where they save most. When no plan is better for long, the search begins again from the best one, or
with a device that this one leaves out: that device is seated first, in an empty plan, and again in every step. Random
numbers come from a generator in the state, so a seed gives the same plans.
"""

from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Bools, Floats, Ints
from takeup.core.compiled import bare, inner, kernel
from takeup.edge.solvers.compiled.dual import Options
from takeup.edge.solvers.compiled.uplinks import (
    BLOCKED,
    Selection,
    Uplinks,
    best_window,
    carried_by,
    collect,
    energy,
    new_selection,
    next_level,
    select,
)

NUM_STEPS, CLOSE_LEVEL = 12, 0.01  # of the search for the group of a device
CLOSE = 1e-12  # relative; rounding of sums of inverses
WORTH_IT = 1e-9  # relative; a smaller improvement is rounding
LEAST_FACTOR, MORE_FACTOR = 0.3, 1.1  # on prices, drawn in every step
NOISE = 0.2  # of the worth, in the order of devices
MUCH_SHARE, MUCH = 0.2, 8.0  # of steps with more noise, and how much more
WINDOW_SHARE = 0.5  # of steps that empty neighbouring subcarriers, where groups must be neighbours
CORES_SHARE = 0.4  # of steps that empty whole cores
TURN_SHARE, TURN_NOISE = 0.15, 0.3  # of steps with other orders than that of deadlines, and by how much
FEW = 12  # devices that may ask to join in a step
LAST_SHARE = 0.3  # of steps in which removed devices ask to join after all others
WORSE = 0.002  # of the best worth; a plan that is worse by less is followed
MOST_STALE = 200  # steps without a better plan, after which the search returns to the best one
PINNED_SHARE = 0.7  # of these returns with a device that the best plan leaves out


class CorePlan(NamedTuple):
    """A plan: the owner of each subcarrier; by device its group, core, start (nan: none) and the cost of its upload.

    `queue[core]` has the `length[core]` devices of a core in the order of their runs.
    """

    owner: Ints
    group: Ints
    size: Ints
    core: Ints
    start_s: Floats
    cost_j: Floats
    queue: Ints
    length: Ints


class Workspace(NamedTuple):
    """The scratch arrays of a search, and its state: the generator, steps done, and the step of the latest success.

    `pinned` is a device that is in every plan for now, -1: none; `num_pinned` how often each was. `hint_s` is when
    the upload of a device ended at the best prices; `turn_s` decides the order on a core.
    """

    chosen: Selection
    trial: Ints
    group: Ints
    inverses: Floats
    starts_s: Floats
    levels: Floats
    hint_s: Floats
    turn_s: Floats
    keys: Floats
    waiting: Ints
    seated: Ints
    more_j: Floats
    more: Ints
    random: Ints
    steps: Ints
    pinned: Ints
    num_pinned: Ints


class Search(NamedTuple):
    """All that a search works on: prices of subcarriers, the options sorted by their floors, plans."""

    up: Uplinks
    options: Options
    prices: Floats
    margin_j: Floats
    now: CorePlan
    next: CorePlan
    best: CorePlan
    room: Workspace


def empty_plan(num_devices: int, num_subcarriers: int, num_cores: int) -> CorePlan:
    """A plan in which no device offloads."""
    return CorePlan(
        np.full(num_subcarriers, -1),
        np.empty((num_devices, num_subcarriers), np.int64),
        np.zeros(num_devices, np.int64),
        np.zeros(num_devices, np.int64),
        np.full(num_devices, np.nan),
        np.zeros(num_devices),
        np.empty((num_cores, num_devices), np.int64),
        np.zeros(num_cores, np.int64),
    )


def new_search(up: Uplinks, options: Options, num_cores: int, seed: int) -> Search:
    """A search from the plan without devices, with prices of zero."""
    num_devices, num_subcarriers = up.logs.shape
    room = Workspace(
        new_selection(num_subcarriers),
        np.empty(num_subcarriers + 1, np.int64),
        np.empty(num_subcarriers + 1, np.int64),
        np.empty(num_subcarriers + 1),
        np.zeros(num_devices),
        np.zeros(num_devices),
        np.zeros(num_devices),
        np.zeros(num_devices),
        np.empty(num_devices),
        np.empty(num_devices, np.int64),
        np.empty(num_devices, np.int64),
        np.zeros(num_devices),
        np.full(num_devices, -1),
        np.array([seed + 1]),
        np.zeros(2, np.int64),
        np.full(1, -1),
        np.zeros(num_devices, np.int64),
    )
    room.levels[:] = np.where(options.num > 0, options.level[:, 0], 0.0)
    room.turn_s[:] = up.cell.devices["due_s"]
    now = empty_plan(num_devices, num_subcarriers, num_cores)
    trial = empty_plan(num_devices, num_subcarriers, num_cores)
    best = empty_plan(num_devices, num_subcarriers, num_cores)
    return Search(up, options, np.zeros(num_subcarriers), np.zeros(num_devices), now, trial, best, room)


# Runs on the cores ----------------------------------------------------------------------------------------------------


@bare
def _try_core(search: Search, plan: CorePlan, core: int, newcomer: int) -> float:
    """The start of a newcomer on a core, those of the others in `starts_s`; nan if one is too late, 0 without one."""
    devices, room = search.up.cell.devices, search.room
    taken_s, own_s, waits = np.inf, 0.0, newcomer >= 0
    for place in range(plan.length[core] - 1, -1, -1):
        device = plan.queue[core, place]
        if waits and room.turn_s[newcomer] >= devices[device].due_s:
            taken_s = own_s = min(devices[newcomer].due_s, taken_s) - devices[newcomer].run_s
            waits = False
        taken_s = min(devices[device].due_s, taken_s) - devices[device].run_s
        room.starts_s[device] = taken_s
        if taken_s <= devices[device].release_s:
            return np.nan
    if waits:
        own_s = min(devices[newcomer].due_s, taken_s) - devices[newcomer].run_s
    return np.nan if newcomer >= 0 and own_s <= devices[newcomer].release_s else own_s


@bare
def _cost_at(search: Search, plan: CorePlan, device: int, start_s: float) -> float:
    window_s = start_s - search.up.cell.devices[device].release_s
    return energy(search.up, device, plan.group[device], plan.size[device], window_s)


@bare
def _harm(search: Search, plan: CorePlan, core: int, most_j: float) -> float:
    """What the devices of a core would spend more with the starts that were tried; stops at `most_j`."""
    harm_j = 0.0
    for place in range(plan.length[core]):
        device = plan.queue[core, place]
        start_s = search.room.starts_s[device]
        if start_s != plan.start_s[device] and harm_j < most_j:
            harm_j += _cost_at(search, plan, device, start_s) - plan.cost_j[device]
    return harm_j


@bare
def _settle(search: Search, plan: CorePlan, core: int) -> None:
    """The starts that were tried become those of the plan."""
    for place in range(plan.length[core]):
        device = plan.queue[core, place]
        if search.room.starts_s[device] != plan.start_s[device]:
            plan.start_s[device] = search.room.starts_s[device]
            plan.cost_j[device] = _cost_at(search, plan, device, plan.start_s[device])


@bare
def _seat(search: Search, plan: CorePlan, device: int, core: int, start_s: float, size: int) -> None:
    """Add a device with the group in the workspace, after `_try_core` with it."""
    room = search.room
    _settle(search, plan, core)
    place = plan.length[core]
    plan.length[core] = place + 1
    while place > 0 and search.up.cell.devices[plan.queue[core, place - 1]].due_s > room.turn_s[device]:
        plan.queue[core, place] = plan.queue[core, place - 1]
        place -= 1
    plan.queue[core, place] = device
    for index in range(size):
        plan.group[device, index] = room.group[index]
        plan.owner[room.group[index]] = device
    plan.size[device], plan.start_s[device], plan.core[device] = size, start_s, core
    plan.cost_j[device] = _cost_at(search, plan, device, start_s)


@bare
def _remove(plan: CorePlan, device: int) -> None:
    for index in range(plan.size[device]):
        plan.owner[plan.group[device, index]] = -1
    core, kept = plan.core[device], 0
    for place in range(plan.length[core]):
        if plan.queue[core, place] != device:
            plan.queue[core, kept] = plan.queue[core, place]
            kept += 1
    plan.length[core] = kept
    plan.start_s[device], plan.size[device] = np.nan, 0


@bare
def _copy(source: CorePlan, target: CorePlan) -> None:
    for device in range(len(target.size)):
        target.start_s[device], target.size[device] = source.start_s[device], source.size[device]
        target.cost_j[device], target.core[device] = source.cost_j[device], source.core[device]
        for index in range(source.size[device]):
            target.group[device, index] = source.group[device, index]
    for core in range(len(target.length)):
        target.length[core] = source.length[core]
        for place in range(source.length[core]):
            target.queue[core, place] = source.queue[core, place]
    for subcarrier in range(len(target.owner)):
        target.owner[subcarrier] = source.owner[subcarrier]


@bare
def plan_worth(search: Search, plan: CorePlan) -> float:
    """What the plan saves, and what its devices are worth beyond."""
    total_j = 0.0
    for device in range(len(plan.size)):
        if plan.size[device] > 0:
            total_j += search.up.cell.devices[device].worth_j - plan.cost_j[device]
    return total_j


# The group of a newcomer: among free subcarriers, the least energy and prices together --------------------------------


@bare
def _choose_group(search: Search, plan: CorePlan, device: int, window_s: float, factor: float) -> int:
    """The size of the group, which is left in the workspace; 0 if none is worth it."""
    if window_s <= 0.0:
        return 0
    if len(search.up.rates) > 0:
        return _choose_modulated(search, plan, device, window_s, factor)
    size, cost_j = _choose_water(search, plan, device, window_s, window_s, factor, np.inf)
    hint_s = search.room.hint_s[device]
    if 0.0 < hint_s < 0.9 * window_s:
        other, other_j = _choose_water(search, plan, device, hint_s, window_s, factor, cost_j)
        size = other if other_j < cost_j else size
    return size


@bare
def _keep_group(search: Search, device: int, window_s: float, factor: float, best_j: float) -> float:
    """Keep the chosen group if its energy and prices are below `best_j`; what it costs, or inf."""
    up, room = search.up, search.room
    size = collect(up, device, room.chosen.members, room.trial)
    cost_j = energy(up, device, room.trial, size, window_s)
    if not cost_j < up.cell.devices[device].worth_j:
        return np.inf
    for index in range(size):
        cost_j += factor * search.prices[room.trial[index]]
    if cost_j >= best_j:
        return np.inf
    for index in range(size):
        room.group[index] = room.trial[index]
    return cost_j


@bare
def _choose_water(
    search: Search, plan: CorePlan, device: int, time_s: float, window_s: float, factor: float, best_j: float
) -> tuple[int, float]:
    """The best group seen at the water levels of an upload of this time, and what it costs with its prices."""
    up, room, chosen = search.up, search.room, search.room.chosen
    rate, level, price, low, high = up.need[device] / time_s, room.levels[device], 0.0, -np.inf, np.inf
    best = 0
    for step in range(NUM_STEPS):
        weight, height = time_s * (1.0 + price), np.exp(level)
        for at in range(len(chosen.terms)):
            over = level + up.logs[device, at]
            carried = weight * (height * (over - 1.0) + up.inverse[device, at]) if over > 0.0 else 0.0
            chosen.terms[at] = factor * search.prices[at] - carried if plan.owner[at] < 0 else BLOCKED
        size = _select_allowed(search)
        if size == 0:
            break
        cost_j = _keep_group(search, device, window_s, factor, best_j)
        if cost_j < best_j:
            best, best_j, room.levels[device] = size, cost_j, level
        count, sum_logs, power_w = carried_by(up, device, chosen.members, level)
        if count * level + sum_logs < rate:
            low = level
        else:
            high = level
        proposal = next_level(level, low, high, count, sum_logs, rate)
        if abs(proposal - level) < CLOSE_LEVEL or high - low < 2.0 * CLOSE_LEVEL:
            if power_w <= up.cell.max_power_w * (1.0 + CLOSE_LEVEL) or step > NUM_STEPS - 3:
                break
            price, low, high = 1.7 * price + 0.3, -np.inf, np.inf
        level = proposal
    return best, best_j


@bare
def _select_allowed(search: Search) -> int:
    """Choose all that is worth it, at least one subcarrier, of an allowed size; the size, 0 if there is none."""
    up, chosen = search.up, search.room.chosen
    found = select(chosen, 1, True, up.contiguous)
    size = 0
    for at in range(len(chosen.members)):
        size += chosen.members[at]
    if found < BLOCKED / 2 and not up.may_have[size]:
        while size < len(up.may_have) - 2 and not up.may_have[size]:
            size += 1
        while size > 0 and not up.may_have[size]:
            size -= 1
        found = select(chosen, size, False, up.contiguous) if size > 0 else BLOCKED
    return size if found < BLOCKED / 2 else 0


@bare
def _sum_free(search: Search, plan: CorePlan, device: int) -> tuple[int, float]:
    """How many subcarriers are free, and the least price of one; sums of the least inverses are in the workspace."""
    room, num_free, least_price = search.room, 0, np.inf
    room.inverses[0] = 0.0
    for rank in range(len(plan.owner)):
        subcarrier = search.up.ranked[device, rank]
        if plan.owner[subcarrier] < 0:
            num_free += 1
            room.inverses[num_free] = room.inverses[num_free - 1] + search.up.inverse[device, subcarrier]
            least_price = min(least_price, search.prices[subcarrier])
    return num_free, least_price


@bare
def _choose_modulated(search: Search, plan: CorePlan, device: int, window_s: float, factor: float) -> int:
    up, options, chosen, inverses = search.up, search.options, search.room.chosen, search.room.inverses
    best, best_j, worth_j = 0, np.inf, up.cell.devices[device].worth_j
    num_free, least_price = _sum_free(search, plan, device)
    for at in range(options.num[device]):
        if options.floor_j[device, at] >= min(best_j, worth_j):
            break
        size = options.size[device, at]
        if options.end_s[device, at] > window_s or size > num_free or not up.may_have[size]:
            continue
        time_s, ratio = options.end_s[device, at], options.ratio[device, at]
        power_w = ratio * inverses[size]
        energy_j = time_s * (up.cell.circuit_power_w + power_w)
        if power_w > up.cell.max_power_w * (1.0 + CLOSE) or energy_j >= worth_j * (1.0 + CLOSE):
            continue
        if energy_j + factor * size * least_price >= best_j * (1.0 + CLOSE):
            continue
        for attempt in range(1 if up.contiguous else 2):  # 1: without prices
            for subcarrier in range(len(chosen.terms)):
                term = factor * search.prices[subcarrier] if attempt == 0 else 0.0
                term += 0.0 if up.contiguous else time_s * ratio * up.inverse[device, subcarrier]
                chosen.terms[subcarrier] = term if plan.owner[subcarrier] < 0 else BLOCKED
            if up.contiguous:
                found_j = best_window(up, device, chosen, size, ratio, time_s, min(best_j, BLOCKED / 2))
                if found_j >= min(best_j, BLOCKED / 2):
                    break
            elif select(chosen, size, False, False) >= BLOCKED / 2:
                break
            count = 0
            for at_member in range(len(chosen.members)):
                count += chosen.members[at_member]
            cost_j = _keep_group(search, device, window_s, factor, best_j) if up.may_have[count] else np.inf
            if cost_j < best_j:
                best, best_j = count, cost_j
                break
    return best


@bare
def _join(search: Search, plan: CorePlan, device: int, factor: float, fit: float) -> None:
    """Let a device join if that adds to the worth; `fit` says whether early or late starts are liked."""
    up, room = search.up, search.room
    each = up.cell.devices[device]
    best_core, best_score, best_harm_j, saw_empty = -1, np.inf, 0.0, False
    for core in range(len(plan.length)):
        if plan.length[core] == 0 and saw_empty:
            continue
        saw_empty |= plan.length[core] == 0
        own_s = _try_core(search, plan, core, device)
        if np.isnan(own_s):
            continue
        harm_j = _harm(search, plan, core, each.reach_j)
        if harm_j < each.reach_j and harm_j + fit * own_s * each.worth_j < best_score:
            best_core, best_score, best_harm_j = core, harm_j + fit * own_s * each.worth_j, harm_j
    if best_core < 0:
        return
    own_s = _try_core(search, plan, best_core, device)
    size = _choose_group(search, plan, device, own_s - each.release_s, factor)
    if size > 0 and energy(up, device, room.group, size, own_s - each.release_s) + best_harm_j < each.worth_j:
        _seat(search, plan, device, best_core, own_s, size)


# Free subcarriers go where they save most -----------------------------------------------------------------------------


@bare
def _with_one_more(search: Search, plan: CorePlan, device: int, subcarrier: int) -> float:
    """What the upload of a device costs with one more subcarrier; the group is left in the workspace."""
    up, group = search.up, search.room.trial
    place = plan.size[device]
    for index in range(place):
        group[index] = plan.group[device, index]
    while place > 0 and up.inverse[device, group[place - 1]] > up.inverse[device, subcarrier]:
        group[place] = group[place - 1]
        place -= 1
    group[place] = subcarrier
    window_s = plan.start_s[device] - up.cell.devices[device].release_s
    return energy(up, device, group, plan.size[device] + 1, window_s)


@bare
def _find_more(search: Search, plan: CorePlan, device: int) -> None:
    """The free subcarrier that saves the device most, and how much."""
    up, room = search.up, search.room
    room.more_j[device], room.more[device] = WORTH_IT * plan.cost_j[device], -1
    if not up.may_have[plan.size[device] + 1]:
        return
    first, last, count = len(plan.owner), -1, 0
    for index in range(plan.size[device]):
        first, last = min(first, plan.group[device, index]), max(last, plan.group[device, index])
    for rank in range(2 if up.contiguous else len(plan.owner)):
        subcarrier = (first - 1 if rank == 0 else last + 1) if up.contiguous else up.ranked[device, rank]
        if 0 <= subcarrier < len(plan.owner) and plan.owner[subcarrier] < 0:
            count += 1
            saved_j = plan.cost_j[device] - _with_one_more(search, plan, device, subcarrier)
            if saved_j > room.more_j[device]:
                room.more_j[device], room.more[device] = saved_j, subcarrier
            if not up.contiguous:
                return


@bare
def _fill(search: Search, plan: CorePlan) -> None:
    room, count = search.room, 0
    for device in range(len(plan.size)):
        if plan.size[device] > 0:
            room.seated[count] = device
            count += 1
            _find_more(search, plan, device)
    while True:
        best = -1
        for index in range(count):
            device = room.seated[index]
            if room.more[device] >= 0 and (best < 0 or room.more_j[device] > room.more_j[best]):
                best = device
        if best < 0:
            return
        given = room.more[best]
        plan.cost_j[best] = _with_one_more(search, plan, best, given)
        plan.size[best] += 1
        for index in range(plan.size[best]):
            plan.group[best, index] = room.trial[index]
        plan.owner[given] = best
        for index in range(count):
            device = room.seated[index]
            if device == best or room.more[device] == given:
                _find_more(search, plan, device)


# The search -----------------------------------------------------------------------------------------------------------


@bare
def _draw(search: Search) -> float:
    """A random number in [0, 1), by a linear congruential generator."""
    state = np.uint64(search.room.random[0]) * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
    search.room.random[0] = np.int64(state)
    return float(state >> np.uint64(33)) / 2147483648.0


@bare
def _remove_some(search: Search, plan: CorePlan) -> None:
    count = 0
    for device in range(len(plan.size)):
        count += plan.size[device] > 0
    share, num_cores = 0.5 * _draw(search) ** 3 + 1.5 / max(1, count), len(plan.length)
    if _draw(search) < CORES_SHARE:
        for _ in range(1 + int(_draw(search) * min(2, num_cores - 1) + 0.5)):
            core = int(_draw(search) * num_cores)
            while plan.length[core] > 0:
                _remove(plan, plan.queue[core, plan.length[core] - 1])
        share = share if _draw(search) < 0.5 else 0.0
    if search.up.contiguous and _draw(search) < WINDOW_SHARE:
        first, count = int(_draw(search) * len(plan.owner)), int(_draw(search) ** 2 * len(plan.owner)) + 1
        for subcarrier in range(first, min(first + count, len(plan.owner))):
            if plan.owner[subcarrier] >= 0:
                _remove(plan, plan.owner[subcarrier])
        share = share if _draw(search) < 0.3 else 0.0
    for device in range(len(plan.size)):
        if plan.size[device] > 0 and _draw(search) < share:
            _remove(plan, device)
    for core in range(num_cores):
        _try_core(search, plan, core, int(np.int64(-1)))
        _settle(search, plan, core)


@inner
def _let_join(search: Search, plan: CorePlan, is_first: bool) -> None:
    room, devices, count = search.room, search.up.cell.devices, 0
    noise = 0.0 if is_first else NOISE * _draw(search) * (MUCH if _draw(search) < MUCH_SHARE else 1.0)
    factor = 1.0 if is_first else LEAST_FACTOR + MORE_FACTOR * _draw(search)
    fit = 0.0 if is_first else (2.0 * _draw(search) - 1.0) ** 3
    jitter = TURN_NOISE if not is_first and _draw(search) < TURN_SHARE else 0.0
    removed_last = not is_first and _draw(search) < LAST_SHARE
    for device in range(len(plan.size)):
        if devices[device].reach_j > 0.0 and plan.size[device] == 0:
            drawn = _draw(search) - 0.5
            room.keys[count] = -search.margin_j[device] - noise * drawn * devices[device].worth_j
            if removed_last and search.now.size[device] > 0:
                room.keys[count] += BLOCKED
            if device == room.pinned[0]:
                room.keys[count] = -BLOCKED
            room.waiting[count] = device
            room.turn_s[device] = devices[device].due_s * (1.0 + jitter * (_draw(search) - 0.5))
            count += 1
    order = np.argsort(room.keys[:count])
    most = count if is_first else min(count, FEW + int(_draw(search) * _draw(search) * count))
    for index in range(most):
        _join(search, plan, room.waiting[order[index]], factor, fit)


@bare
def _remove_all(search: Search, plan: CorePlan) -> None:
    for device in range(len(plan.size)):
        if plan.size[device] > 0:
            _remove(plan, device)


@bare
def _pin(search: Search) -> None:
    """Pin a device that the best plan leaves out, or none: likely one with much to save that was seldom pinned."""
    room, devices, most_j, pinned = search.room, search.up.cell.devices, 0.0, -1
    for device in range(len(search.best.size)):
        score_j = _draw(search) * devices[device].reach_j / (1.0 + room.num_pinned[device])
        if search.best.size[device] == 0 and score_j > most_j:
            pinned, most_j = device, score_j
    room.pinned[0] = pinned if _draw(search) < PINNED_SHARE else -1
    if room.pinned[0] >= 0:
        room.num_pinned[pinned] += 1


@kernel
def improve(search: Search, num_steps: int, is_first: bool) -> float:
    """Steps of the search; the worth of the best plan. First ones only add to the plan there is, and leave it."""
    room = search.room
    now_j, best_j = plan_worth(search, search.now), plan_worth(search, search.best)
    for _ in range(num_steps):
        _copy(search.now, search.next)
        pinned = room.pinned[0]
        if pinned >= 0 and search.next.size[pinned] == 0:
            _remove_all(search, search.next)
        elif not is_first:
            _remove_some(search, search.next)
        _let_join(search, search.next, is_first)
        _fill(search, search.next)
        found_j = plan_worth(search, search.next)
        room.steps[0] += 1
        if not is_first and found_j >= now_j - WORSE * _draw(search) * best_j:
            _copy(search.next, search.now)
            now_j = found_j
        if found_j > best_j * (1.0 + WORTH_IT):
            _copy(search.next, search.best)
            best_j, room.steps[1] = found_j, room.steps[0]
        is_lost = pinned >= 0 and search.now.size[pinned] == 0
        if room.steps[0] - room.steps[1] > MOST_STALE or is_lost:
            _copy(search.best, search.now)
            _pin(search)
            now_j, room.steps[1] = best_j if room.pinned[0] < 0 else -np.inf, room.steps[0]
    return best_j


@kernel
def return_to_best(search: Search) -> None:
    """The search continues from the best plan."""
    _copy(search.best, search.now)
    search.room.pinned[0] = -1


@kernel
def start_from(search: Search, devices: Ints, cores: Ints, groups: Bools) -> None:
    """Make a plan of these devices, the last to start first, on these cores with these groups, as far as possible."""
    plan, room = search.now, search.room
    for row in range(len(devices)):
        device, core = devices[row], cores[row]
        each = search.up.cell.devices[device]
        size, is_free = collect(search.up, device, groups[row], room.group), True
        for index in range(size):
            is_free &= plan.owner[room.group[index]] < 0
        if size == 0 or not is_free or not search.up.may_have[size]:
            continue
        room.turn_s[device] = -np.inf  # before all that are there
        own_s = _try_core(search, plan, core, device)
        if not np.isnan(own_s) and energy(search.up, device, room.group, size, own_s - each.release_s) < each.worth_j:
            _seat(search, plan, device, core, own_s, size)
        room.turn_s[device] = each.due_s
