"""Column generation: the master problem, dual prices with the bound they prove, and the pricers of columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple, Protocol

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csc_array

from takeup.core.arrays import Bools, Floats, Ints
from takeup.core.native_output import native_output_to_stderr
from takeup.edge.energy import ABSENT, ModulatedGroups, PrefixGroups
from takeup.edge.model import Instance
from takeup.edge.solvers.compiled.pricing import (
    GroupCosts,
    Uplink,
    best_listed,
    best_wide,
    cheapest_starts,
    group_costs,
)
from takeup.edge.solvers.partial_plan import SiteQuantities

# Master problem of the column generation: a mix of columns (device, group, start) within every resource limit ---------
#
# Its dual values are prices. They give a bound at any time, not only at the end: no device can gain more than its best
# profit at these prices, and the resources are worth their price at most (see `generate`).


@dataclass(frozen=True, slots=True)
class SlotGrid:
    """Slots of CPU time: where they begin and end."""

    edges_s: Floats
    num_cores: int

    @property
    def capacity_s(self) -> Floats:
        """The CPU time in every slot."""
        return self.num_cores * np.diff(self.edges_s)

    def usage(self, start_s: Floats, run_s: Floats) -> Floats:
        """The share of every slot that runs take, one row for each."""
        ends_s = (start_s + run_s)[:, None]
        inside_s = np.minimum(ends_s, self.edges_s[1:]) - np.maximum(start_s[:, None], self.edges_s[:-1])
        shares: Floats = np.maximum(0.0, inside_s) / self.capacity_s
        return shares


def slot_grid(instance: Instance, num_slots: int) -> SlotGrid:
    """Equal slots from the first release to the last deadline."""
    first_s, last_s = float(instance.releases_s.min()), float(instance.deadlines_s.max())
    return SlotGrid(np.linspace(first_s, last_s, num_slots + 1), instance.num_cores)


class ColumnSet(NamedTuple):
    """Devices with a group and a start each, and what they are worth at most."""

    device: Ints
    members: Bools
    start_s: Floats
    value_j: Floats

    def only(self, rows: Ints | Bools) -> ColumnSet:
        """Some of them."""
        return ColumnSet(self.device[rows], self.members[rows], self.start_s[rows], self.value_j[rows])


def concatenate_columns(parts: list[ColumnSet]) -> ColumnSet:
    """The columns of several lists in one."""
    return ColumnSet(
        np.concatenate([part.device for part in parts]),
        np.concatenate([part.members for part in parts]),
        np.concatenate([part.start_s for part in parts]),
        np.concatenate([part.value_j for part in parts]),
    )


class Duals(NamedTuple):
    """Prices in joules: of every subcarrier, and of all CPU time of every slot."""

    subcarriers_j: Floats
    slots_j: Floats


class MasterSolution(NamedTuple):
    """The best mix: what it is worth, how much of every column it has, and the prices of the resources."""

    value_j: float
    shares: Floats
    duals: Duals


def solve_master(instance: Instance, grid: SlotGrid, columns: ColumnSet) -> MasterSolution:
    """The best mix of fractions of columns."""
    rows, scale_j = _rows(instance, grid, columns), float(columns.value_j.max())
    with native_output_to_stderr():
        found = linprog(-columns.value_j / scale_j, A_ub=rows, b_ub=np.ones(rows.shape[0]), method="highs")
    prices_j = np.maximum(0.0, -found.ineqlin.marginals) * scale_j
    first, second = instance.num_devices, instance.num_devices + instance.num_subcarriers
    return MasterSolution(-float(found.fun) * scale_j, found.x, Duals(prices_j[first:second], prices_j[second:]))


def _rows(instance: Instance, grid: SlotGrid, columns: ColumnSet) -> csc_array:
    """One row for each device, subcarrier and slot: what a column takes of it; there is one of each."""
    alone = np.zeros((len(columns.device), instance.num_devices))
    alone[np.arange(len(columns.device)), columns.device] = 1.0
    usage = grid.usage(columns.start_s, instance.run_s[columns.device])
    return csc_array(np.hstack([alone, columns.members, usage]).T)


# Column generation: prices for the resources, and the columns that are best at them, until both agree -----------------
#
# How it works. The master problem mixes the columns there are and says what resources are worth. At these prices every
# device's best column is computed. The sum of the prices and of the profits of all devices is a bound on any
# allocation; columns with a profit join the master. Prices are taken halfway between those of the best bound so far and
# those of the master, which jump.

SMOOTH = 0.5  # how far prices stay with those of the best bound
CLOSE = 1e-5  # of the bound; when the master is as near as this, nothing is to be had
MEMORY = 0.3  # how much of the excess of earlier rounds still counts
PATIENCE, SHORTER = 5, 0.6  # rounds without a better bound, after which steps become shorter
OFFERS_EACH = 3  # columns of a device that may join at once


class ColumnOffers(NamedTuple):
    """At some prices, by device and slot: no group and start gains more than `profits_j` there."""

    profits_j: Floats
    start_s: Floats


class Pricer(Protocol):
    """Finds the best column of every device in every slot at given prices."""

    def offers(self, duals: Duals) -> ColumnOffers:
        """How much they gain at most; -inf where a device cannot start."""

    def columns(self, devices: Ints, slots: Ints) -> ColumnSet:
        """Some of the columns behind the latest offers."""


class GenerationRounds(NamedTuple):
    """How long to look for prices: rounds of steps along the excess, then rounds of the master problem at most."""

    num_warm: int
    most: int


class GeneratedColumns(NamedTuple):
    """The best bound, the prices that gave it, the profits at them, and all columns."""

    bound_j: float
    duals: Duals
    profits_j: Floats
    columns: ColumnSet


def generate(
    instance: Instance,
    grid: SlotGrid,
    pricer: Pricer,
    known_j: float,
    rounds: GenerationRounds,
    is_over: Callable[[], bool] = lambda: False,
) -> GeneratedColumns:
    """Prices and columns after the rounds, or when it is over; `known_j` is what some allocation is worth."""
    best, columns = _subgradient_prices(instance, grid, pricer, known_j, rounds.num_warm, is_over)
    for _ in range(rounds.most):
        if is_over() or len(columns.device) == 0 or best.bound_j <= known_j * (1 + CLOSE):
            break
        mix = solve_master(instance, grid, columns)
        if best.bound_j - mix.value_j <= CLOSE * best.bound_j:
            break
        prices_j = SMOOTH * np.concatenate(best.duals) + (1 - SMOOTH) * np.concatenate(mix.duals)
        found = _evaluate_prices(instance, prices_j, pricer)
        columns = concatenate_columns([columns, _best_columns(pricer, found.profits_j)])
        best = found if found.bound_j < best.bound_j else best
    return GeneratedColumns(best.bound_j, best.duals, best.profits_j, columns)


def _subgradient_prices(
    instance: Instance, grid: SlotGrid, pricer: Pricer, known_j: float, num_rounds: int, is_over: Callable[[], bool]
) -> tuple[_PriceEvaluation, ColumnSet]:
    """Prices that rise where the best columns of all devices together take more than there is, and fall elsewhere.

    The step is the one that would lead to the known worth if the bound were straight (Polyak), and a part of it when
    the bound has not become better for some rounds.
    """
    prices_j = np.zeros(instance.num_subcarriers + len(grid.capacity_s))
    num_subcarriers, num_slots = instance.num_subcarriers, len(grid.capacity_s)
    scale = np.ones(num_subcarriers + num_slots)
    scale[num_subcarriers:] = max(1.0, (num_subcarriers / num_slots) ** 2)  # all CPU time of a slot costs much more
    excess, step_share, num_worse = np.zeros(len(prices_j)), 1.0, 0
    found = best = _evaluate_prices(instance, prices_j, pricer)
    parts: list[ColumnSet] = []
    for _ in range(max(1, num_rounds)):
        columns = _best_columns(pricer, found.profits_j, 1)
        parts.append(columns)
        excess = _usage(instance, grid, columns) - 1 + MEMORY * excess
        if is_over() or best.bound_j <= known_j * (1 + CLOSE) or not excess.any():
            break
        step_j = step_share * (found.bound_j - known_j) / (excess @ (scale * excess))
        prices_j = np.maximum(0.0, prices_j + step_j * scale * excess)
        found = _evaluate_prices(instance, prices_j, pricer)
        num_worse = 0 if found.bound_j < best.bound_j else num_worse + 1
        best = found if num_worse == 0 else best
        if num_worse == PATIENCE:
            step_share, num_worse = step_share * SHORTER, 1
    return best, concatenate_columns(parts)


def _usage(instance: Instance, grid: SlotGrid, columns: ColumnSet) -> Floats:
    """The share of every subcarrier and slot that the columns take together."""
    of_slots = grid.usage(columns.start_s, instance.run_s[columns.device]).sum(axis=0)
    return np.concatenate([columns.members.sum(axis=0), of_slots])


class _PriceEvaluation(NamedTuple):
    bound_j: float
    duals: Duals
    profits_j: Floats


def _evaluate_prices(instance: Instance, prices_j: Floats, pricer: Pricer) -> _PriceEvaluation:
    """The bound at prices of subcarriers and slots."""
    duals = Duals(prices_j[: instance.num_subcarriers], prices_j[instance.num_subcarriers :])
    profits_j = pricer.offers(duals).profits_j
    gained_j = np.maximum(0.0, profits_j.max(axis=1, initial=0.0))
    return _PriceEvaluation(float(prices_j.sum() + gained_j.sum()), duals, profits_j)


def _best_columns(pricer: Pricer, profits_j: Floats, most_each: int = OFFERS_EACH) -> ColumnSet:
    """The best few columns of every device, of those with a profit."""
    slots = np.argsort(-profits_j, axis=1, kind="stable")[:, :most_each]
    devices = np.broadcast_to(np.arange(len(slots))[:, None], slots.shape)
    gains = np.take_along_axis(profits_j, slots, axis=1) > 0
    return pricer.columns(devices[gains], slots[gains])


# All groups of a few subcarriers, and what uploads over them cost -----------------------------------------------------

MOST_LISTED = 10  # subcarriers; there are two to this power groups to a device
MOST_ENTRIES = 2_000_000  # of device, slot and group


def can_list(instance: Instance, num_slots: int) -> bool:
    """Whether there are few enough groups to look at all of them, for every device and slot."""
    if not 0 < instance.num_subcarriers <= MOST_LISTED or instance.num_devices == 0:
        return False
    num_times = max(1, (len(instance.radio.modulations) * instance.num_subcarriers) ** 2)
    return instance.num_devices * max(num_slots, num_times) << instance.num_subcarriers <= MOST_ENTRIES


def group_of(mask: int) -> list[int]:
    """The subcarriers of a mask."""
    return [each for each in range(mask.bit_length()) if mask >> each & 1]


def list_groups(instance: Instance, most_size: int | None = None) -> GroupCosts:
    """The tables for every device and mask, or only for masks with at most `most_size` subcarriers."""
    if most_size is None:
        masks, width = list(range(1 << instance.num_subcarriers)), instance.num_subcarriers
    else:
        masks, width = _small_masks(instance, most_size), most_size
    gains = instance.gain_to_noise
    order = np.argsort(-gains, axis=1, kind="stable")
    ranked = np.take_along_axis(gains, order, axis=1)
    padded = np.column_stack([gains, np.full(len(gains), ABSENT)])
    inside = -np.sort(-padded[:, _members(masks, width, instance.num_subcarriers)], axis=-1)
    allowed = np.array([_is_allowed(instance, mask) for mask in masks])
    shortest_s, cheapest_s, least_j, step_s, step_j = _tables(instance, inside)
    return GroupCosts(
        masks=np.array(masks),
        ranked=np.left_shift(1, order),
        logs=np.log2(ranked),
        inverse=1 / ranked,
        bits_per_hz=instance.bits / instance.radio.bandwidth_hz,
        circuit_power_w=instance.radio.circuit_power_w,
        shortest_s=np.where(allowed, shortest_s, np.inf),
        cheapest_s=np.ascontiguousarray(cheapest_s),  # another layout would be compiled once more
        least_j=np.ascontiguousarray(least_j),
        step_s=step_s,
        step_j=step_j,
    )


def _small_masks(instance: Instance, most_size: int) -> list[int]:
    subcarriers = range(instance.num_subcarriers)
    return [
        sum(1 << each for each in group)
        for size in range(1, most_size + 1)
        for group in combinations(subcarriers, size)
    ]


def _members(masks: list[int], width: int, absent: int) -> Ints:
    """The subcarriers of every mask in a row, filled up with a number that stands for none."""
    rows = [group_of(mask) for mask in masks]
    return np.array([row + [absent] * (width - len(row)) for row in rows])


def _is_allowed(instance: Instance, mask: int) -> bool:
    """Whether a device may have the group: of the sizes, and neighbours, where the instance asks for it."""
    lowest = mask & -mask
    is_run = (mask + lowest) & mask == 0
    is_of_size = not instance.group_sizes or mask.bit_count() in instance.group_sizes
    return mask > 0 and is_of_size and (is_run or not instance.contiguous)


def _tables(instance: Instance, inside: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Shortest, cheapest, its energy, and the steps, for gains by device and mask from the best on."""
    bits = np.broadcast_to(instance.bits[:, None], inside.shape[:2])
    forever_s = np.full(inside.shape[:2], np.inf)
    if not instance.radio.modulations:
        plain = PrefixGroups(inside, bits, instance.radio)
        cheapest_s, none = plain.cheapest_s[..., -1], np.zeros((*inside.shape[:2], 0))
        least_j = plain.whole(np.where(np.isfinite(cheapest_s), cheapest_s, 0.0)).energy_j
        return plain.shortest_s[..., -1], cheapest_s, least_j, none, none
    modulated = ModulatedGroups(inside, bits, instance.radio)
    times_s = np.sort(_every_time(instance, inside), axis=-1)
    energies_j = modulated.whole(times_s.transpose(2, 0, 1)).energy_j.transpose(1, 2, 0)
    uploads = modulated.whole(forever_s)
    return modulated.shortest_s[..., -1], uploads.time_s, uploads.energy_j, times_s, np.ascontiguousarray(energies_j)


def _every_time(instance: Instance, inside: Floats) -> Floats:
    """How long uploads may take: one time for each modulation and number of subcarriers in use."""
    rates = np.array([each.bits_per_hz_s for each in instance.radio.modulations])
    counts = np.arange(1, inside.shape[-1] + 1)
    per_bit_s = 1 / (instance.radio.bandwidth_hz * np.unique(rates[:, None] * counts))
    return np.broadcast_to(instance.bits[:, None, None] * per_bit_s, (*inside.shape[:2], len(per_bit_s)))


# The best columns where all groups can be listed: what each is worth in each slot is computed once --------------------


class ListedPricer:
    """Looks at every group."""

    def __init__(self, instance: Instance, groups: GroupCosts, grid: SlotGrid) -> None:
        self._instance, self._grid = instance, grid
        self._latest_s = instance.deadlines_s - instance.run_s
        limits_s = np.minimum(grid.edges_s[None, 1:], self._latest_s[:, None])
        costs_j = group_costs(groups, limits_s - instance.releases_s[:, None])
        self._values_j = instance.worth_j[:, None, None] - costs_j
        self._earliest_s = instance.releases_s + groups.shortest_s.min(axis=1)
        self._members = (groups.masks[:, None] >> np.arange(instance.num_subcarriers)) & 1 == 1
        self._groups = np.zeros(self._values_j.shape[:2], np.int64)
        self._starts_s = np.zeros((0, 0))

    def offers(self, duals: Duals) -> ColumnOffers:
        """How much every device gains at most in every slot; -inf where it cannot start."""
        omega = np.concatenate([[0.0], np.cumsum(duals.slots_j)]) / self._grid.num_cores
        found = cheapest_starts(self._grid.edges_s, omega, self._earliest_s, self._latest_s, self._instance.run_s)
        self._starts_s = found[:, :, 0]
        profits_j = best_listed(self._values_j, self._members @ duals.subcarriers_j, self._groups)
        return ColumnOffers(np.where(np.isnan(self._starts_s), -np.inf, profits_j - found[:, :, 1]), self._starts_s)

    def columns(self, devices: Ints, slots: Ints) -> ColumnSet:
        """Some of the columns behind the latest offers."""
        groups = self._groups[devices, slots]
        values_j = self._values_j[devices, slots, groups]
        return ColumnSet(devices, self._members[groups], self._starts_s[devices, slots], values_j)


# The best columns where there are too many groups to list: bounds by duality, and groups that come with them ----------

NUM_SPANS = 10  # of equal ratio, besides those that end with a slot


class WidePricer:
    """Bounds the best group of `size` subcarriers or more, of every device for every span of upload times."""

    def __init__(self, instance: Instance, grid: SlotGrid, size: int) -> None:
        self._site, self._grid, self._size = SiteQuantities(instance), grid, size
        limits_s = np.minimum(grid.edges_s[None, 1:], self._site.latest_s[:, None])
        self._windows_s = limits_s - instance.releases_s[:, None]
        self._link = _uplink(self._site, self._windows_s)
        self._earliest_s = instance.releases_s + self._link.shortest_s[:, -1]
        self._last = _last_spans(self._link, self._windows_s)
        num_spans = self._link.spans_s.shape[1] - 1
        self._members = np.zeros((instance.num_devices, num_spans, instance.num_subcarriers), np.bool_)
        self._spans = np.zeros((0, 0), np.int64)
        self._starts_s = np.zeros((0, 0))

    def offers(self, duals: Duals) -> ColumnOffers:
        """How much every device gains at most in every slot; -inf where it cannot start."""
        omega = np.concatenate([[0.0], np.cumsum(duals.slots_j)]) / self._grid.num_cores
        run_s = self._site.run_s
        found = cheapest_starts(self._grid.edges_s, omega, self._earliest_s, self._site.latest_s, run_s)
        costs_j = best_wide(self._link._replace(prices=duals.subcarriers_j), self._size, self._members)
        self._spans = np.take_along_axis(_first_least(costs_j), self._last, axis=1)
        least_j = np.take_along_axis(np.minimum.accumulate(costs_j, axis=1), self._last, axis=1)
        self._starts_s = found[:, :, 0]
        profits_j = self._site.worth_j[:, None] - least_j - found[:, :, 1]
        return ColumnOffers(np.where(np.isnan(profits_j), -np.inf, profits_j), self._starts_s)

    def columns(self, devices: Ints, slots: Ints) -> ColumnSet:
        """Some of the columns behind the latest offers, with their true values; only those that save anything."""
        if self._site.has_own_groups:  # these groups need not be allowed
            devices, slots = devices[:0], slots[:0]
        members = self._members[devices, self._spans[devices, slots]]
        groups = [np.flatnonzero(row).tolist() for row in members]
        windows_s = self._windows_s[devices, slots][:, None]
        costs_j = self._site.table(devices, groups).whole(windows_s).energy_j[:, 0] if len(devices) else np.zeros(0)
        columns = ColumnSet(devices, members, self._starts_s[devices, slots], self._site.worth_j[devices] - costs_j)
        return columns.only(columns.value_j > 0)


def _uplink(site: SiteQuantities, windows_s: Floats) -> Uplink:
    instance = site.instance
    order = np.argsort(-site.gains, axis=1, kind="stable")
    ranked = np.take_along_axis(site.gains, order, axis=1)
    shortest_s = PrefixGroups(ranked, instance.bits, instance.radio).shortest_s
    rows = [_spans(float(first), row) for first, row in zip(shortest_s[:, -1], windows_s, strict=True)]
    longest = max((len(row) for row in rows), default=1)
    spans_s = np.stack([np.pad(row, (0, longest - len(row)), mode="edge") for row in rows])
    return Uplink(
        order=order,
        logs=np.log(ranked),
        inverse=1 / ranked,
        shortest_s=np.ascontiguousarray(shortest_s),
        need=np.log(2) * instance.bits / instance.radio.bandwidth_hz,
        worth_j=site.worth_j.copy(),
        max_power_w=instance.radio.max_power_w,
        circuit_power_w=instance.radio.circuit_power_w,
        spans_s=spans_s,
        num_spans=np.array([len(row) - 1 for row in rows]),
        prices=np.zeros(instance.num_subcarriers),
        levels=np.full(spans_s.shape, -np.inf),
        rungs=np.zeros(spans_s.shape, np.int64),
    )


def _spans(shortest_s: float, windows_s: Floats) -> Floats:
    """The ends of the spans of upload times: every window, and some of equal ratio."""
    longest_s = float(windows_s.max())
    if not shortest_s < longest_s:
        return np.array([max(longest_s, 1e-12)])
    between_s = np.geomspace(shortest_s, longest_s, NUM_SPANS + 1)
    ends_s = np.concatenate([between_s[:-1], windows_s[windows_s > shortest_s]])
    return np.unique(ends_s)


def _last_spans(link: Uplink, windows_s: Floats) -> Ints:
    """The last span that a window reaches into."""
    last = [
        np.searchsorted(row[: count + 1], window, side="left") - 1
        for row, count, window in zip(link.spans_s, link.num_spans.tolist(), windows_s, strict=True)
    ]
    clipped: Ints = np.clip(np.array(last), 0, max(0, link.spans_s.shape[1] - 2))
    return clipped


def _first_least(costs_j: Floats) -> Ints:
    """For every span, the one up to it that costs least."""
    least_j = np.minimum.accumulate(costs_j, axis=1)
    return np.maximum.accumulate(np.where(costs_j <= least_j, np.arange(costs_j.shape[1]), 0), axis=1)


class CombinedPricer:
    """All groups up to a size by looking at them, larger ones by duality."""

    def __init__(self, small: Pricer, large: Pricer) -> None:
        self._pricers = (small, large)
        self._large = np.zeros((0, 0), np.bool_)

    def offers(self, duals: Duals) -> ColumnOffers:
        """The better of both offers."""
        small, large = (pricer.offers(duals) for pricer in self._pricers)
        self._large = large.profits_j > small.profits_j
        return ColumnOffers(np.maximum(small.profits_j, large.profits_j), small.start_s)

    def columns(self, devices: Ints, slots: Ints) -> ColumnSet:
        """Some of the columns behind the latest offers, each from the pricer that made the offer."""
        large = self._large[devices, slots]
        parts = zip(self._pricers, (~large, large), strict=True)
        return concatenate_columns([pricer.columns(devices[rows], slots[rows]) for pricer, rows in parts])


# The bound of an instance, with the pricers that its size allows ------------------------------------------------------

NUM_SLOTS = 32
ROUNDS = GenerationRounds(60, 2)
MOST_COMBINED = 800_000  # of device, slot and listed group
MOST_BITS = 62  # subcarriers in a mask
MOST_DEVICES = 200
ROUNDING = 1e-9


def column_bound(instance: Instance, known_j: float, is_over: Callable[[], bool]) -> float:
    """What no plan exceeds, by generated columns; infinite where groups can neither be listed nor bounded."""
    can_bound = not instance.radio.modulations or can_list(instance, NUM_SLOTS)
    if not (can_bound and 0 < instance.num_devices <= MOST_DEVICES):
        return np.inf
    grid = slot_grid(instance, NUM_SLOTS)
    return generate(instance, grid, _pricer(instance, grid), known_j, ROUNDS, is_over).bound_j * (1 + ROUNDING)


def _pricer(instance: Instance, grid: SlotGrid) -> Pricer:
    if can_list(instance, NUM_SLOTS):
        return ListedPricer(instance, list_groups(instance), grid)
    size = _listed_size(instance)
    if size == 0:
        return WidePricer(instance, grid, 1)
    small = ListedPricer(instance, list_groups(instance, size), grid)
    return CombinedPricer(small, WidePricer(instance, grid, size + 1))


def _listed_size(instance: Instance) -> int:
    """Up to how many subcarriers all groups are listed; above, duality has to do."""
    if instance.num_subcarriers > MOST_BITS:
        return 0
    count, groups, listed, size = instance.num_subcarriers, 1, 0, 0
    while size < count - 1:
        groups = groups * (count - size) // (size + 1)
        listed += groups
        if listed * instance.num_devices * NUM_SLOTS > MOST_COMBINED:
            break
        size += 1
    return size
