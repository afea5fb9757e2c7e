"""Local search for better groups of the same devices: move a subcarrier to another device, or swap two.

Where groups must be runs of neighbours, whole runs are swapped, and a subcarrier moves between adjacent runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations

import numpy as np

from takeup.core.arrays import Floats
from takeup.edge.energy import ABSENT, oracle
from takeup.edge.policies.plan import PartialPlan

LEAST_EXCHANGE_GAIN = 1e-9  # of all upload energy; a smaller gain is rounding


def exchange_subcarriers(plan: PartialPlan) -> None:
    """Carry out the best move or swap of subcarriers between two devices, as long as one makes uploads cheaper."""
    if len(plan.groups) < 2:
        return
    if plan.site.instance.contiguous:
        _exchange_runs(plan)
        return
    tables = {device: _costs(plan, device) for device in plan.groups}
    total_j = sum(float(table[-1, -1]) for table in tables.values())
    while True:
        gain_j, taker, giver, taken, given = _best(plan, tables)
        if gain_j <= LEAST_EXCHANGE_GAIN * total_j:
            return
        plan.groups[giver].remove(taken)
        plan.groups[taker].append(taken)
        if given is not None:
            plan.groups[taker].remove(given)
            plan.groups[giver].append(given)
        tables |= {device: _costs(plan, device) for device in (taker, giver)}


def _costs(plan: PartialPlan, device: int) -> Floats:
    """What the upload costs with one subcarrier less (rows, as in the group) and one more (columns, by number).

    The last row is for none less, the last column for none more; inf where the upload cannot be made in time.
    """
    site, group = plan.site, plan.groups[device]
    size, count = len(group), site.instance.num_subcarriers
    gains = np.empty((size + 1, count + 1, size + 1))
    gains[:, :, :size] = site.gains[device, group]
    gains[np.arange(size), :, np.arange(size)] = ABSENT
    gains[:, :count, size] = site.gains[device]
    gains[:, count, size] = ABSENT
    bits = np.full(gains.shape[:2], site.instance.bits[device])
    table = oracle(-np.sort(-gains, axis=-1), bits, site.instance.radio)
    return table.whole(np.full(gains.shape[:2], plan.window_s(device))).energy_j


def _best(plan: PartialPlan, tables: dict[int, Floats]) -> tuple[float, int, int, int, int | None]:
    """The largest gain, the taker, the giver, the subcarrier taken, and the one given in return."""
    best: tuple[float, int, int, int, int | None] = (-np.inf, -1, -1, -1, None)
    for giver, gives in plan.groups.items():
        for taker, owns in plan.groups.items():
            if taker == giver:
                continue
            before_j = tables[giver][-1, -1] + tables[taker][-1, -1]
            # rows: what the giver loses; columns: what the taker gives for it, at the end nothing
            giver_j = tables[giver][: len(gives)][:, [*owns, -1]]
            taker_j = tables[taker][:, gives].T
            after_j = giver_j + taker_j
            if not _may_move(plan, gives, owns):
                after_j[:, -1] = np.inf
            row, column = divmod(int(np.argmin(after_j)), after_j.shape[1])
            gain_j = float(before_j - after_j[row, column])
            if gain_j > best[0]:
                best = (gain_j, taker, giver, gives[row], owns[column] if column < len(owns) else None)
    return best


def _may_move(plan: PartialPlan, gives: list[int], owns: list[int]) -> bool:
    """Whether both groups keep a size that is allowed when one subcarrier goes from the first to the second."""
    sizes = plan.site.instance.group_sizes
    return not sizes or (len(gives) - 1 in sizes and len(owns) + 1 in sizes)


# Runs -----------------------------------------------------------------------------------------------------------------

ExchangeTrial = dict[int, list[int]]


def _exchange_runs(plan: PartialPlan) -> None:
    """Carry out the best exchange between two runs, as long as one makes uploads cheaper."""
    total_j = float(plan.uploads().energy_j.sum())
    while True:
        trials = list(_trials(plan))
        gains_j = _gains(plan, trials)
        best = int(np.argmax(gains_j))
        if gains_j[best] <= LEAST_EXCHANGE_GAIN * total_j:
            return
        plan.groups |= trials[best]


def _gains(plan: PartialPlan, trials: list[ExchangeTrial]) -> Floats:
    """What the two uploads of every trial cost less than now; -inf if one of them cannot be made in time."""
    before_j = dict(zip(plan.groups, plan.uploads().energy_j.tolist(), strict=True))
    devices = [device for trial in trials for device in trial]
    groups = [group for trial in trials for group in trial.values()]
    windows_s = np.array([[plan.window_s(device)] for device in devices])
    after_j = plan.site.table(np.array(devices), groups).whole(windows_s).energy_j
    gains_j: Floats = (np.array([before_j[device] for device in devices]) - after_j[:, 0]).reshape(-1, 2).sum(axis=1)
    return gains_j


def _trials(plan: PartialPlan) -> Iterator[ExchangeTrial]:
    """New groups for two devices."""
    for one, other in combinations(plan.groups, 2):
        yield {one: list(plan.groups[other]), other: list(plan.groups[one])}
    for giver, taker in permutations(plan.groups, 2):
        gives, owns = sorted(plan.groups[giver]), sorted(plan.groups[taker])
        if len(gives) > 1 and _may_move(plan, gives, owns):
            if gives[-1] + 1 == owns[0]:
                yield {giver: gives[:-1], taker: [gives[-1], *owns]}
            if owns[-1] + 1 == gives[0]:
                yield {giver: gives[1:], taker: [*owns, gives[0]]}
