"""Pricers of the column generation: every group where they can be listed, bounds by duality where they cannot."""

from itertools import combinations

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.edge.energy import ABSENT, ModulatedGroups, PrefixGroups
from takeup.edge.model import Instance
from takeup.edge.solvers.column_generation import (
    ColumnOffers,
    ColumnSet,
    Duals,
    Pricer,
    SlotGrid,
    concatenate_columns,
)
from takeup.edge.solvers.compiled.pricing import (
    GroupCosts,
    Uplink,
    best_listed,
    best_wide,
    cheapest_starts,
    group_costs,
)
from takeup.edge.solvers.partial_plan import SiteQuantities

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
        self._groups = np.zeros((0, 0), np.int64)
        self._starts_s = np.zeros((0, 0))

    def offers(self, duals: Duals) -> ColumnOffers:
        """How much every device gains at most in every slot; -inf where it cannot start."""
        omega = np.concatenate([[0.0], np.cumsum(duals.slots_j)]) / self._grid.num_cores
        found = cheapest_starts(self._grid.edges_s, omega, self._earliest_s, self._latest_s, self._instance.run_s)
        self._starts_s = found[:, :, 0]
        self._groups, profits_j = best_listed(self._values_j, self._members @ duals.subcarriers_j)
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
        self._members = np.zeros((0, 0, 0), np.bool_)
        self._spans = np.zeros((0, 0), np.int64)
        self._starts_s = np.zeros((0, 0))

    def offers(self, duals: Duals) -> ColumnOffers:
        """How much every device gains at most in every slot; -inf where it cannot start."""
        omega = np.concatenate([[0.0], np.cumsum(duals.slots_j)]) / self._grid.num_cores
        run_s = self._site.run_s
        found = cheapest_starts(self._grid.edges_s, omega, self._earliest_s, self._site.latest_s, run_s)
        costs_j, self._members = best_wide(self._link._replace(prices=duals.subcarriers_j), self._size)
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
