"""The best columns where there are too many groups to list: bounds by duality, and groups that come with them."""

from __future__ import annotations

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.edge.energy import PrefixGroups
from takeup.edge.model import Instance
from takeup.edge.policies.bounds.fast.pricing import cheapest_starts
from takeup.edge.policies.bounds.fast.wide import Uplink, best_wide
from takeup.edge.policies.bounds.generate import ColumnOffers, Pricer
from takeup.edge.policies.bounds.master import ColumnSet, Duals, SlotGrid
from takeup.edge.policies.plan import SiteQuantities

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
        members = self._members[devices, self._spans[devices, slots]]
        groups = [np.flatnonzero(row).tolist() for row in members]
        windows_s = self._windows_s[devices, slots][:, None]
        costs_j = self._site.table(devices, groups).whole(windows_s).energy_j[:, 0] if len(devices) else np.zeros(0)
        columns = ColumnSet(devices, members, self._starts_s[devices, slots], self._site.worth_j[devices] - costs_j)
        return columns.only(columns.value_j > 0)


def _uplink(site: SiteQuantities, windows_s: Floats) -> Uplink:
    instance = site.instance
    shortest_s = PrefixGroups(-np.sort(-site.gains, axis=1), instance.bits, instance.radio).shortest_s
    rows = [_spans(float(first), row) for first, row in zip(shortest_s[:, -1], windows_s, strict=True)]
    longest = max((len(row) for row in rows), default=1)
    spans_s = np.stack([np.pad(row, (0, longest - len(row)), mode="edge") for row in rows])
    return Uplink(
        logs=np.log(site.gains),
        inverse=1 / site.gains,
        shortest_s=shortest_s,
        need=np.log(2) * instance.bits / instance.radio.bandwidth_hz,
        max_power_w=instance.radio.max_power_w,
        circuit_power_w=instance.radio.circuit_power_w,
        spans_s=spans_s,
        num_spans=np.array([len(row) - 1 for row in rows]),
        prices=np.zeros(instance.num_subcarriers),
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
        small, wide = (
            pricer.columns(devices[rows], slots[rows])
            for pricer, rows in zip(self._pricers, (~large, large), strict=True)
        )
        return small.joined(wide)
