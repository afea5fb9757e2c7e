"""Prices of subcarriers and of CPU time, and the bound on all plans that any prices prove.

How it works. At prices, every device takes what is best for it alone; prices plus the profits of all devices bound the
worth of any plan. A device chooses between *options*. With Shannon's formula an option is a span of upload times and a
least size of the group. For S subcarriers, any water level a and any price r of power, energy and subcarriers cost at
least

    (1 + r) a K + t (circuit - r most) + sum over S of (p - (1 + r) t f(a)),    K = the bits in nats per hertz,
    f(a) = a ln(a g) - a + 1/g   where a g > 1,   otherwise 0,

which is concave in t, so least at an end of the span. The best level is about the one at which the group carries the
bits by the end of the span; it is kept for the next prices, which are near these. Groups of neighbours can have their
own energies instead, which exclude mixtures of wide and narrow ones. With modulations an option is a modulation and a
size, so the time is known. An option is evaluated only if a floor on its cost, with the best channels and the cheapest
subcarriers, could beat the best one so far.

Prices follow the excess of what devices take over what there is, by a step that would lead to a target below the best
bound if the bound were straight; the target comes nearer whenever the bound stops falling.
"""

from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Bools, Floats, Ints
from takeup.core.compiled import bare, inner, kernel
from takeup.edge.solvers.compiled.uplinks import (
    ROUNDING,
    Selection,
    Uplinks,
    best_window,
    carried_by,
    collect,
    next_level,
    select,
    selection,
    shortest,
    upload_cost,
    water_terms,
)

FEW_SUBCARRIERS = 40
NUM_SPANS, NUM_FINE_SPANS = 20, 40  # with many subcarriers, and with few
LEAST_SIZES = np.array(
    [1, 2, 3, 4, 6, 9, 13, 19, 28, 41, 60]
)  # of the classes of group sizes; each ends where the next one begins
FINE_SIZES = np.array([1, 2, 3, 4, 5, 6, 7, 8, 10, 12])
NUM_STEPS, CLOSE_LEVEL = 10, 0.02  # of the search for a water level
NUM_MODULATED_STEPS = 8
ENOUGH_POWER, MUCH_POWER = 0.95, 1.02  # of what there is; between them the price of power stays
PATIENCE, NEARER, MEMORY = 12, 0.6, 0.5  # rounds without a better bound, what is then left of the aim, of directions
FIRST_AIM = 0.1  # of the worth of a known plan


class Options(NamedTuple):
    """The options of every device: span of upload times, sizes, needed ratio (0: Shannon's), and a floor on the energy.

    `level` and `power_price` are what was best at the last prices. `windows_j[device, span]` has the energies of all
    groups of neighbours by their first and last one, nan if not yet known; it is empty if they are not to be listed.
    """

    num: Ints
    begin_s: Floats
    end_s: Floats
    size: Ints
    or_more: Bools
    ratio: Floats
    floor_j: Floats
    level: Floats
    power_price: Floats
    span: Ints
    windows_j: Floats


class CoreTime(NamedTuple):
    """Slots of CPU time, and for every device the starts at which a run may be cheapest, rising."""

    edges_s: Floats
    starts_s: Floats


class Ascent(NamedTuple):
    """Prices now and best, direction and scale; a row of `takes` for every device: its group, start and upload limit.

    `must` is 1 for devices that every plan in question has, -1 for those that none has, and 0 for all others; runs
    start between `from_s` and `until_s`. `margin_j` is what a device would gain beyond its worth at the last prices,
    below zero for those that stay out. `bound_j`, `aim_j`, `known_j` and `stale` are single numbers in arrays.
    """

    prices: Floats
    best: Floats
    direction: Floats
    scale: Floats
    bound_j: Floats
    aim_j: Floats
    known_j: Floats
    stale: Ints
    margin_j: Floats
    groups: Bools
    start_s: Floats
    limit_s: Floats
    must: Ints
    from_s: Floats
    until_s: Floats


# Options --------------------------------------------------------------------------------------------------------------


def list_options(up: Uplinks, latest_s: Floats, worth_j: Floats) -> Options:
    """All options that could be worth it; windows end at the latest start of a run."""
    num_devices, num_subcarriers = up.logs.shape
    few = num_subcarriers <= FEW_SUBCARRIERS
    num_spans, least_sizes = (NUM_FINE_SPANS, FINE_SIZES) if few else (NUM_SPANS, LEAST_SIZES)
    most = len(up.rates) * num_subcarriers if len(up.rates) > 0 else num_spans * len(least_sizes)
    shape = (num_devices, most)
    options = Options(
        np.zeros(num_devices, np.int64),
        np.empty(shape),
        np.empty(shape),
        np.empty(shape, np.int64),
        np.empty(shape, np.bool_),
        np.zeros(shape),
        np.empty(shape),
        np.zeros(shape),
        np.zeros(shape),
        np.zeros(shape, np.int64),
        np.empty((0, 0, 0)),
    )
    _fill_options(up, options, latest_s, worth_j, num_spans, least_sizes)
    return options


@kernel
def _fill_options(
    up: Uplinks, options: Options, latest_s: Floats, worth_j: Floats, num_spans: int, least_sizes: Ints
) -> None:
    for device in range(len(options.num)):
        window_s = latest_s[device] - up.cell.devices[device].release_s
        if window_s > 0.0 and worth_j[device] > 0.0:
            if len(up.rates) > 0:
                _list_modulated(up, options, device, window_s, worth_j[device])
            else:
                _list_spans(up, options, device, window_s, worth_j[device], num_spans, least_sizes)


@inner
def _list_spans(
    up: Uplinks, options: Options, device: int, window_s: float, worth_j: float, num_spans: int, least_sizes: Ints
) -> None:
    order, num_subcarriers = up.ranked[device], up.logs.shape[1]
    first_s = shortest(up.cell, device, order, num_subcarriers)
    if not first_s < window_s:
        return
    ratio = (window_s / first_s) ** (1.0 / num_spans)
    for span in range(num_spans):
        end_s = window_s if span == num_spans - 1 else first_s * ratio ** (span + 1)
        for number in range(len(least_sizes)):
            size, is_last = least_sizes[number], number == len(least_sizes) - 1
            if size > num_subcarriers:
                break
            most = num_subcarriers if is_last else min(num_subcarriers, least_sizes[number + 1] - 1)
            floor_j = upload_cost(up.cell, device, order, most, end_s)
            if floor_j < worth_j:
                sum_logs = 0.0
                for rank in range(size):
                    sum_logs += up.logs[device, order[rank]]
                at = _add(options, device, first_s * ratio**span, end_s, size, most > size, 0.0, floor_j)
                level = (up.need[device] / end_s - sum_logs) / size
                options.span[device, at] = span
                options.level[device, at] = max(level, 1e-3 - up.logs[device, order[0]])


@inner
def _list_modulated(up: Uplinks, options: Options, device: int, window_s: float, worth_j: float) -> None:
    for number in range(len(up.rates)):
        inverse = 0.0
        for rank in range(up.logs.shape[1]):
            inverse += up.inverse[device, up.ranked[device, rank]]
            power_w = up.ratios[number] * inverse
            if power_w > up.cell.max_power_w:
                break
            time_s = up.need[device] / (up.rates[number] * (rank + 1))
            floor_j = time_s * (up.cell.circuit_power_w + power_w)
            if time_s <= window_s * (1.0 + ROUNDING) and floor_j < worth_j:
                _add(options, device, time_s, time_s, rank + 1, False, up.ratios[number], floor_j)


@bare
def _add(
    options: Options,
    device: int,
    begin_s: float,
    end_s: float,
    size: int,
    or_more: bool,
    ratio: float,
    floor_j: float,
) -> int:
    at = options.num[device]
    options.num[device] = at + 1
    options.begin_s[device, at], options.end_s[device, at] = begin_s, end_s
    options.size[device, at], options.or_more[device, at] = size, or_more
    options.ratio[device, at], options.floor_j[device, at] = ratio, floor_j
    return int(at)


# What an option costs at least at these prices; the group behind the bound is left in `group` -------------------------


@inner
def shannon_cost(
    up: Uplinks, options: Options, device: int, at: int, prices: Floats, chosen: Selection, group: Bools
) -> float:
    """The level is the best one for the end of the span; the beginning may cost less at that level."""
    begin_s, end_s, size = options.begin_s[device, at], options.end_s[device, at], options.size[device, at]
    or_more, need, rate = options.or_more[device, at], up.need[device], up.need[device] / end_s
    lowest = -up.logs[device, up.ranked[device, 0]]
    level, price, best_j, has_priced = options.level[device, at], options.power_price[device, at], -np.inf, False
    low, high = lowest, np.inf
    for _ in range(NUM_STEPS):
        idle_w = up.cell.circuit_power_w - price * up.cell.max_power_w
        water_terms(up, device, chosen, prices, level, (1.0 + price) * end_s)
        end_j = (1.0 + price) * np.exp(level) * need + end_s * idle_w + select(chosen, size, or_more, up.contiguous)
        if end_j > best_j:
            best_j = end_j
            options.level[device, at], options.power_price[device, at] = level, price
            group[:] = chosen.members
        count, sum_logs, power_w = carried_by(up, device, chosen.members, level)
        if count * level + sum_logs < rate:
            low = level
        else:
            high = level
        proposal = next_level(level, low, high, count, sum_logs, rate)
        if abs(proposal - level) < CLOSE_LEVEL or high - low < CLOSE_LEVEL:
            if has_priced or (price == 0.0 and power_w <= MUCH_POWER * up.cell.max_power_w):
                break
            has_priced, low, high = True, lowest, np.inf
            if power_w > MUCH_POWER * up.cell.max_power_w:
                price = 1.5 * price + 0.2
            elif power_w < ENOUGH_POWER * up.cell.max_power_w:
                price = 0.6 * price if price > 0.1 else 0.0
            else:
                break
        level = max(proposal, lowest + 1e-3)
    level, price = options.level[device, at], options.power_price[device, at]
    idle_w = up.cell.circuit_power_w - price * up.cell.max_power_w
    water_terms(up, device, chosen, prices, level, (1.0 + price) * begin_s)
    begin_j = (1.0 + price) * np.exp(level) * need + begin_s * idle_w + select(chosen, size, or_more, up.contiguous)
    if begin_j < best_j:
        group[:] = chosen.members
    return float(min(best_j, begin_j))


@inner
def modulated_cost(
    up: Uplinks,
    options: Options,
    device: int,
    at: int,
    prices: Floats,
    most_j: float,
    chosen: Selection,
    group: Bools,
) -> float:
    """Of neighbours the cost is that of the best window, `most_j` if none costs less."""
    time_s, ratio, size = options.end_s[device, at], options.ratio[device, at], options.size[device, at]
    if up.contiguous:
        chosen.terms[:] = prices
        cost_j = best_window(up, device, chosen, size, ratio, time_s, most_j)
        group[:] = chosen.members
        return cost_j
    price, best_j, low, high = options.power_price[device, at], -np.inf, 0.0, np.inf
    for _ in range(NUM_MODULATED_STEPS):
        weight = time_s * (1.0 + price) * ratio
        for subcarrier in range(len(prices)):
            chosen.terms[subcarrier] = prices[subcarrier] + weight * up.inverse[device, subcarrier]
        idle_w = up.cell.circuit_power_w - price * up.cell.max_power_w
        found_j = time_s * idle_w + select(chosen, size, False, False)
        power_w = 0.0
        for subcarrier in range(len(prices)):
            if chosen.members[subcarrier]:
                power_w += ratio * up.inverse[device, subcarrier]
        if found_j > best_j:
            best_j, options.power_price[device, at] = found_j, price
            group[:] = chosen.members
        if power_w > up.cell.max_power_w:
            low = price
            price = 2.0 * price + 0.25 if high == np.inf else 0.5 * (low + high)
        elif price > 0.0 and power_w < ENOUGH_POWER * up.cell.max_power_w:
            high = price
            price = 0.5 * (low + high) if price > 0.1 else 0.0
        else:
            break
    return best_j


@inner
def window_cost(
    up: Uplinks, options: Options, device: int, at: int, prices: Floats, most_j: float, chosen: Selection, group: Bools
) -> float:
    """The cost of the best window, `most_j` if none costs less; a class of sizes ends where the next one begins."""
    num, span, size = len(prices), options.span[device, at], options.size[device, at]
    most, best_j, best_first, best_end, before_j = num, most_j, 0, 0, 0.0
    if at + 1 < options.num[device] and options.span[device, at + 1] == span:
        most = options.size[device, at + 1] - 1
    least_j, end_s = options.floor_j[device, at], options.end_s[device, at]
    for index in range(size - 1):
        before_j += prices[index]
    for first in range(num - size + 1):
        price_j, row = before_j, first * num - first * (first + 1) // 2
        for last in range(first + size - 1, min(num, first + most)):
            price_j += prices[last]
            if price_j + least_j >= best_j:
                break
            energy_j = options.windows_j[device, span, row + last]
            if np.isnan(energy_j):
                chosen.members[:] = False
                chosen.members[first : last + 1] = True
                count = collect(up, device, chosen.members, chosen.places)
                energy_j = upload_cost(up.cell, device, chosen.places, count, end_s)
                options.windows_j[device, span, row + last] = energy_j
            if price_j + energy_j < best_j:
                best_j, best_first, best_end = price_j + energy_j, first, last + 1
        before_j += prices[first + size - 1] - prices[first] if first + size <= num else 0.0
    group[:] = False
    group[best_first:best_end] = True
    return best_j


@inner
def option_cost(
    up: Uplinks, options: Options, device: int, at: int, prices: Floats, most_j: float, chosen: Selection, group: Bools
) -> float:
    """What an option costs at least, with its group; above `most_j` any number that is not below."""
    if options.ratio[device, at] > 0.0:
        return modulated_cost(up, options, device, at, prices, most_j, chosen, group)
    if len(options.windows_j) > 0:
        return window_cost(up, options, device, at, prices, most_j, chosen, group)
    return shannon_cost(up, options, device, at, prices, chosen, group)


# What CPU time costs --------------------------------------------------------------------------------------------------


@bare
def _price_before(edges_s: Floats, omega: Floats, moment_s: float) -> float:
    """What the CPU time of one core before a moment costs; slots are of equal length."""
    place = (moment_s - edges_s[0]) / (edges_s[1] - edges_s[0])
    slot = max(0, min(int(place), len(omega) - 2))
    return float(omega[slot] + min(1.0, max(0.0, place - slot)) * (omega[slot + 1] - omega[slot]))


@bare
def _run_price(time: CoreTime, omega: Floats, start_s: float, run_s: float) -> float:
    return _price_before(time.edges_s, omega, start_s + run_s) - _price_before(time.edges_s, omega, start_s)


@inner
def _price_starts(
    time: CoreTime, omega: Floats, device: int, run_s: float, until_s: float, least_j: Floats, places: Ints
) -> None:
    """For every start, the least price of a run from there on until `until_s`, and where that is."""
    best_j, best = np.inf, 0
    for at in range(len(least_j) - 1, -1, -1):
        price_j = _run_price(time, omega, time.starts_s[device, at], run_s)
        if price_j < best_j and time.starts_s[device, at] <= until_s:
            best_j, best = price_j, at
        least_j[at], places[at] = best_j, best


@inner
def _cheapest_from(
    time: CoreTime, omega: Floats, device: int, run_s: float, first_s: float, least_j: Floats, places: Ints
) -> tuple[float, float]:
    """The least price of a run that starts at `first_s` or later, and its start."""
    price_j = _run_price(time, omega, first_s, run_s)
    at = np.searchsorted(time.starts_s[device], first_s)
    if at < len(least_j) and least_j[at] <= price_j:
        return float(least_j[at]), float(time.starts_s[device, places[at]])
    return price_j, first_s


# The bound at prices, and the descent ---------------------------------------------------------------------------------


@inner
def _cheapest_sums(prices: Floats, contiguous: bool, most: int) -> Floats:
    """What the cheapest group of every size costs."""
    sums = np.zeros(most + 1)
    ranked = np.sort(prices)
    for size in range(1, most + 1):
        sums[size] = sums[size - 1] + ranked[size - 1]
        if contiguous:
            run, sums[size] = 0.0, np.inf
            for at in range(len(prices)):
                run += prices[at] - (prices[at - size] if at >= size else 0.0)
                if at >= size - 1:
                    sums[size] = min(sums[size], run)
    if contiguous:
        sums[1:] = np.maximum(0.0, sums[1:] - 1e-12 * prices.sum())  # rounding of the running sums
    return sums


@inner
def _bound_at(up: Uplinks, options: Options, time: CoreTime, ascent: Ascent, slack: float, taken: Floats) -> float:
    """The bound at the current prices; `taken` gets the share of every subcarrier and slot that devices take.

    Devices are followed up to a cost of `slack` times their worth, for `margin_j`.
    """
    num_devices, num_subcarriers = up.logs.shape
    num_slots = len(time.edges_s) - 1
    prices, num_cores = ascent.prices[:num_subcarriers], taken[-1]
    omega = np.zeros(num_slots + 1)
    omega[1:] = np.cumsum(ascent.prices[num_subcarriers:]) / num_cores
    taken[:-1] = 0.0
    most = 1
    for device in range(num_devices):
        for at in range(options.num[device]):
            most = max(most, options.size[device, at])
    cheapest_j = _cheapest_sums(prices, up.contiguous, most)
    chosen, group = selection(num_subcarriers), np.empty(num_subcarriers, np.bool_)
    least_j, places = np.empty(time.starts_s.shape[1]), np.empty(time.starts_s.shape[1], np.int64)
    floors_j, cpu_j, starts_s = (
        np.empty(options.size.shape[1]),
        np.empty(options.size.shape[1]),
        np.empty(options.size.shape[1]),
    )
    total_j = ascent.prices.sum()
    for device in range(num_devices):
        each = up.cell.devices[device]
        ascent.start_s[device] = np.nan
        ascent.margin_j[device] = (1.0 - slack) * each.worth_j
        count = options.num[device]
        if count == 0 or ascent.must[device] < 0:
            continue
        last_s = ascent.until_s[device]
        _price_starts(time, omega, device, each.run_s, last_s, least_j, places)
        for at in range(count):
            first_s = max(each.release_s + options.begin_s[device, at], ascent.from_s[device])
            cpu_j[at], starts_s[at] = _cheapest_from(time, omega, device, each.run_s, first_s, least_j, places)
            if first_s > last_s:
                cpu_j[at] = np.inf
            elif last_s < np.inf and _run_price(time, omega, last_s, each.run_s) < cpu_j[at]:
                cpu_j[at], starts_s[at] = _run_price(time, omega, last_s, each.run_s), last_s
            floors_j[at] = options.floor_j[device, at] + cheapest_j[options.size[device, at]] + cpu_j[at]
        best_j = slack * each.worth_j if ascent.must[device] == 0 else np.inf
        while True:
            at = int(np.argmin(floors_j[:count]))
            if floors_j[at] >= best_j:
                break
            cost_j = option_cost(up, options, device, at, prices, best_j - cpu_j[at], chosen, group)
            cost_j = max(cost_j + cpu_j[at], floors_j[at])
            floors_j[at] = np.inf
            if cost_j < best_j:
                best_j = cost_j
                ascent.start_s[device], ascent.limit_s[device] = starts_s[at], options.end_s[device, at]
                ascent.groups[device] = group
        ascent.margin_j[device] = each.worth_j - best_j
        if best_j < each.worth_j or ascent.must[device] > 0:
            total_j += each.worth_j - best_j
        if not np.isnan(ascent.start_s[device]):
            _take(up, time, ascent, device, taken, num_cores)
    return float(total_j)


@inner
def _take(up: Uplinks, time: CoreTime, ascent: Ascent, device: int, taken: Floats, num_cores: float) -> None:
    """Count what a device takes."""
    num_subcarriers = up.logs.shape[1]
    for subcarrier in range(num_subcarriers):
        taken[subcarrier] += ascent.groups[device, subcarrier]
    start_s, end_s = ascent.start_s[device], ascent.start_s[device] + up.cell.devices[device].run_s
    slot_s = time.edges_s[1] - time.edges_s[0]
    for slot in range(len(time.edges_s) - 1):
        inside_s = min(end_s, time.edges_s[slot + 1]) - max(start_s, time.edges_s[slot])
        taken[num_subcarriers + slot] += max(0.0, inside_s) / (num_cores * slot_s)


@kernel
def descend(
    up: Uplinks, options: Options, time: CoreTime, ascent: Ascent, num_cores: int, num_rounds: int, slack: float
) -> None:
    """Rounds of better prices; with no rounds only the bound at the best prices, with `margin_j`."""
    taken = np.empty(len(ascent.prices) + 1)
    taken[-1] = num_cores
    if num_rounds == 0:
        ascent.prices[:] = ascent.best
        _bound_at(up, options, time, ascent, slack, taken)
    for _ in range(num_rounds):
        bound_j = _bound_at(up, options, time, ascent, slack, taken)
        ascent.stale[0] += 1
        if bound_j < ascent.bound_j[0]:
            if ascent.bound_j[0] - bound_j > 0.1 * ascent.aim_j[0]:
                ascent.stale[0] = 0
            ascent.bound_j[0] = bound_j
            ascent.best[:] = ascent.prices
        if ascent.stale[0] >= PATIENCE:
            ascent.stale[0] = 0
            ascent.aim_j[0] *= NEARER
            ascent.prices[:] = ascent.best
            ascent.direction[:] = 0.0
            bound_j = _bound_at(up, options, time, ascent, slack, taken)
        target_j = max(ascent.known_j[0], ascent.bound_j[0] - ascent.aim_j[0])
        norm = 0.0
        for at in range(len(ascent.prices)):
            excess = taken[at] - 1.0
            if ascent.prices[at] <= 0.0:
                excess = max(0.0, excess)
            ascent.direction[at] = excess + MEMORY * ascent.direction[at]
            if ascent.prices[at] <= 0.0:
                ascent.direction[at] = max(0.0, ascent.direction[at])
            norm += ascent.scale[at] * ascent.direction[at] ** 2
        if norm <= 0.0 or bound_j <= target_j:
            return
        step = (bound_j - target_j) / norm
        for at in range(len(ascent.prices)):
            ascent.prices[at] = max(0.0, ascent.prices[at] + step * ascent.scale[at] * ascent.direction[at])
