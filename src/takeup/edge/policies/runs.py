"""Groups of neighbours: where subcarriers of a device must lie side by side, a group is a run without a gap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.edge.energy import oracle

if TYPE_CHECKING:
    from takeup.edge.policies.plan import SiteQuantities


MOST_AT_ONCE = 1_000_000  # gains that are looked at together: 8 MB


def smallest_runs(site: SiteQuantities, devices: Ints, free: Ints, limits_s: Floats) -> tuple[Ints, Floats, Ints]:
    """The shortest runs of free subcarriers that make offloading cheaper than running locally.

    Returns how long (0: there is no such run), what the upload costs, and the subcarriers, as many as the run is long.
    Of runs of one length the cheapest is taken.
    """
    sizes, costs_j = np.zeros(len(devices), np.int64), np.full(len(devices), np.inf)
    found = np.zeros((len(devices), len(free)), np.int64)
    windows_s = limits_s - site.instance.releases_s[devices]
    waiting = np.flatnonzero(_run_costs(site, devices, free[None], windows_s)[:, 0] < site.worth_j[devices])
    for size in site.allowed_sizes(len(free)):
        runs = _runs(free, size)
        if len(runs) == 0 or len(waiting) == 0:
            continue
        trials_j = _run_costs(site, devices[waiting], runs, windows_s[waiting])
        best = np.argmin(trials_j, axis=1)
        saves = trials_j[np.arange(len(waiting)), best] < site.worth_j[devices[waiting]]
        done = waiting[saves]
        sizes[done], costs_j[done] = size, trials_j[saves, best[saves]]
        found[done, :size] = runs[best[saves]]
        waiting = waiting[~saves]
    return sizes, costs_j, found


def longer_runs(group: list[int], free: Ints, num_more: int) -> Iterator[list[int]]:
    """The free subcarriers that extend a run by `num_more`, for every way to divide them between its two ends."""
    first, last, available = min(group), max(group), set(free.tolist())
    for num_before in range(num_more + 1):
        added = [*range(first - num_before, first), *range(last + 1, last + 1 + num_more - num_before)]
        if available.issuperset(added):
            yield added


def _runs(free: Ints, size: int) -> Ints:
    """All runs of this length, a row each."""
    windows = np.lib.stride_tricks.sliding_window_view(free, size)
    runs: Ints = windows[windows[:, -1] - windows[:, 0] == size - 1]
    return runs


def _run_costs(site: SiteQuantities, devices: Ints, groups: Ints, windows_s: Floats) -> Floats:
    """What the upload of every device (row) over every group (column) costs."""
    costs_j = np.empty((len(devices), len(groups)))
    num_rows = max(1, MOST_AT_ONCE // groups.size)
    for begin in range(0, len(devices), num_rows):
        rows = slice(begin, begin + num_rows)
        gains = -np.sort(-site.gains[devices[rows]][:, groups], axis=2)
        bits = np.broadcast_to(site.instance.bits[devices[rows], None], gains.shape[:2])
        limits_s = np.broadcast_to(windows_s[rows, None], gains.shape[:2])
        costs_j[rows] = oracle(gains, bits, site.instance.radio).whole(limits_s).energy_j
    return costs_j
