"""Radio allocation: smallest groups by largest saving, left-over subcarriers, and exchanges between devices."""

from collections.abc import Iterator
from itertools import combinations, permutations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats, Ints
from takeup.edge.energy import ABSENT, oracle
from takeup.edge.model import Reason
from takeup.edge.solvers.partial_plan import PartialPlan, SiteQuantities, longer_runs

# Radio allocation: smallest groups by largest saving, then left-over subcarriers where they save most -----------------

WORTH_IT = 1e-12  # of the energy of an upload; a smaller reduction is rounding


def assign_groups(site: SiteQuantities, devices: Ints, limits_s: Floats) -> PartialPlan:
    """Groups for the devices that save most, one device at a time. Limits are by device.

    Savings only fall while subcarriers are taken, so a group is looked for again only when it would be next.
    """
    plan, free = PartialPlan(site), site.all_subcarriers
    savings_j, sizes, ranked = _smallest_groups(site, devices, free, limits_s)
    while len(devices) and len(free) and savings_j[best := int(np.argmax(savings_j))] > 0:
        device, group = int(devices[best]), ranked[best, : sizes[best]].copy()
        if np.isin(group, free).all():
            plan.groups[device], plan.limits_s[device] = group.tolist(), float(limits_s[device])
            free = np.setdiff1d(free, group)
            savings_j[best] = -np.inf
        else:
            again = _smallest_groups(site, devices[[best]], free, limits_s)
            savings_j[best], sizes[best] = again[0][0], again[1][0]
            ranked[best, : len(free)] = again[2][0]
    return plan


def _smallest_groups(site: SiteQuantities, devices: Ints, free: Ints, limits_s: Floats) -> tuple[Floats, Ints, Ints]:
    """What each device would save with its smallest group (-inf: it has none), and its size and ranking."""
    sizes, costs_j, ranked = site.smallest_groups(devices, free, limits_s[devices])
    return np.where(sizes > 0, site.worth_j[devices] - costs_j, -np.inf), sizes, ranked


def assign_free_subcarriers(plan: PartialPlan) -> None:
    """Give every free subcarrier to the device whose upload it makes cheaper by most, while it helps at all."""
    free = plan.free()
    if not (len(free) and plan.groups):
        return
    if plan.site.has_own_groups:
        _assign_in_steps(plan)
        return
    costs_j = plan.uploads().energy_j
    devices = list(plan.groups)
    with_one_more_j = np.stack([_with_one_more(plan, device, free) for device in devices])
    while len(free):
        reductions_j = costs_j[:, None] - with_one_more_j
        row, column = np.unravel_index(int(np.argmax(reductions_j)), reductions_j.shape)
        if reductions_j[row, column] <= WORTH_IT * costs_j[row]:
            return
        costs_j[row] = with_one_more_j[row, column]
        plan.groups[devices[row]].append(int(free[column]))
        free = np.delete(free, column)
        with_one_more_j = np.delete(with_one_more_j, column, axis=1)
        with_one_more_j[row] = _with_one_more(plan, devices[row], free)


def _with_one_more(plan: PartialPlan, device: int, free: Ints) -> Floats:
    """What the upload of a device would cost with each of the free subcarriers."""
    site = plan.site
    gains = np.full((len(free), len(plan.groups[device]) + 1), ABSENT)
    gains[:, :-1] = site.gains[device, plan.groups[device]]
    gains[:, -1] = site.gains[device, free]
    bits = np.full(len(free), site.instance.bits[device])
    table = oracle(-np.sort(-gains, axis=1), bits, site.instance.radio)
    return table.whole(np.full(len(free), plan.window_s(device))).energy_j


class _Step(NamedTuple):
    """The best way for a device to have a larger group: what it costs less, and which subcarriers are added."""

    reduction_j: float
    added: frozenset[int]


def _assign_in_steps(plan: PartialPlan) -> None:
    """The same where a group must be a run, or of certain sizes: devices grow to their next size, the best first."""
    steps = {device: _next_step(plan, device) for device in plan.groups}
    while steps[best := max(steps, key=lambda device: steps[device].reduction_j)].added:
        added = steps[best].added
        plan.groups[best] += sorted(added)
        for device in plan.groups:
            if device == best or added & steps[device].added:
                steps[device] = _next_step(plan, device)


def _next_step(plan: PartialPlan, device: int) -> _Step:
    site, group, free = plan.site, plan.groups[device], plan.free()
    sizes = [size for size in site.allowed_sizes(len(group) + len(free)) if size > len(group)]
    if not sizes:
        return _Step(0.0, frozenset())
    num_more = sizes[0] - len(group)
    if site.instance.contiguous:
        choices = list(longer_runs(group, free, num_more))
    else:
        choices = [free[np.argsort(-site.gains[device, free], kind="stable")][:num_more].tolist()]
    trials = [group, *(group + added for added in choices)]
    limits_s = np.full((len(trials), 1), plan.window_s(device))
    costs_j = site.table(np.full(len(trials), device), trials).whole(limits_s).energy_j[:, 0]
    best = int(np.argmin(costs_j))
    reduction_j = float(costs_j[0] - costs_j[best])
    helps = reduction_j > WORTH_IT * costs_j[0]
    return _Step(reduction_j, frozenset(choices[best - 1])) if helps else _Step(0.0, frozenset())


def refusal_reasons(site: SiteQuantities, promising: Ints) -> npt.NDArray[np.int8]:
    """The usual reasons of devices that do not offload: no saving, or others save more."""
    reasons = np.full(site.instance.num_devices, np.int8(Reason.NO_SAVING))
    reasons[promising] = Reason.CROWDED_OUT
    return reasons


# Local search for better groups of the same devices: move a subcarrier to another device, or swap two -----------------
#
# Where groups must be runs of neighbours, whole runs are swapped, and a subcarrier moves between adjacent runs.

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
