"""Plans under construction: groups and core schedules of the devices, and which devices could join. For learners."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats, Ints
from takeup.edge.energy import ABSENT, Oracle, Uploads, least_powers, oracle
from takeup.edge.model import UNASSIGNED, Allocation, Answer, Instance, Reason

# Schedules of the cores: as late as possible in the order of deadlines ------------------------------------------------
#
# As late as possible is best for a given order: every start is the latest it can be, and a later start means a longer
# and cheaper upload. The order of deadlines is the right one whenever uploads are short against the time there is.


def latest_starts(deadlines_s: Floats, run_s: Floats, num_cores: int = 1) -> Floats:
    """The latest start of every task, in the order of their deadlines; below zero where they do not fit."""
    none = np.zeros(0)
    starts_s: Floats = starts_with_one_more(deadlines_s, run_s, none, none, num_cores, num_plans=1)[1][0]
    return starts_s


def starts_with_one_more(
    deadlines_s: Floats,
    run_s: Floats,
    new_deadlines_s: Floats,
    new_run_s: Floats,
    num_cores: int = 1,
    num_plans: int | None = None,
) -> tuple[Floats, Floats]:
    """For every newcomer, its own latest start and those of the others (one row each) if it alone joined them.

    Backwards in time, a task takes the core on which it can run latest. Without newcomers, `num_plans` rows are alike.
    """
    num_plans = len(new_run_s) if num_plans is None else num_plans
    newcomer_s = np.full(len(new_run_s), np.nan)
    others_s = np.empty((num_plans, len(run_s)))
    cores = _Cores(num_plans, num_cores)
    waiting = np.ones(len(new_run_s), np.bool_)
    for task in np.argsort(deadlines_s, kind="stable")[::-1].tolist():
        joins = np.flatnonzero(waiting & (new_deadlines_s >= deadlines_s[task]))
        newcomer_s[joins] = cores.take(joins, new_deadlines_s[joins], new_run_s[joins])
        waiting[joins] = False
        others_s[:, task] = cores.take(cores.rows, deadlines_s[task], run_s[task])
    last = np.flatnonzero(waiting)
    newcomer_s[last] = cores.take(last, new_deadlines_s[last], new_run_s[last])
    return newcomer_s, others_s


class _Cores:
    """When the cores of several plans are taken from, seen backwards in time."""

    def __init__(self, num_plans: int, num_cores: int) -> None:
        self._taken_s = np.full((num_plans, num_cores), np.inf)
        self.rows = np.arange(num_plans)

    def take(self, rows: Ints, due_s: Floats, run_s: Floats) -> Floats:
        """Run a task in each of these plans, as late as possible; when it starts."""
        core = np.argmax(self._taken_s[rows], axis=1)
        start_s: Floats = np.minimum(due_s, self._taken_s[rows, core]) - run_s
        self._taken_s[rows, core] = start_s
        return start_s


# Groups of neighbours: where subcarriers of a device must lie side by side, a group is a run without a gap ------------

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


# A partial plan: the subcarriers and CPU start of each offloading device; converted to an answer at the end -----------


class SiteQuantities:
    """Quantities of an instance that policies need, computed once."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.gains = instance.gain_to_noise
        self.local_j = instance.local_j
        self.worth_j = instance.worth_j
        self.run_s = instance.run_s
        self.latest_s = instance.deadlines_s - instance.run_s
        self.all_subcarriers = np.arange(instance.num_subcarriers)

    def promising(self) -> Ints:
        """Devices that would save energy if they had the site for themselves."""
        if self.has_own_groups:
            everyone = np.arange(self.instance.num_devices)
            return np.flatnonzero(self.smallest_groups(everyone, self.all_subcarriers, self.latest_s)[0] > 0)
        ranked = -np.sort(-self.gains, axis=1)
        windows_s = self.latest_s - self.instance.releases_s
        alone = oracle(ranked, self.instance.bits, self.instance.radio).whole(windows_s)
        return np.flatnonzero(alone.energy_j < self.worth_j)

    @property
    def has_own_groups(self) -> bool:
        """Whether the instance restricts which sets of subcarriers may be a group."""
        return self.instance.contiguous or bool(self.instance.group_sizes)

    def allowed_sizes(self, most: int) -> list[int]:
        """How many subcarriers a device may have, rising, up to `most`."""
        sizes = self.instance.group_sizes or range(1, most + 1)
        return sorted({size for size in sizes if size <= most})

    def starts_with_one_more(self, accepted: Ints, devices: Ints) -> tuple[Floats, Floats]:
        """The latest start of each of the devices, and those of the accepted ones (a row), if it alone joined them."""
        due_s, run_s, num_cores = self.instance.deadlines_s, self.run_s, self.instance.num_cores
        return starts_with_one_more(due_s[accepted], run_s[accepted], due_s[devices], run_s[devices], num_cores)

    def smallest_groups(self, devices: Ints, free: Ints, limits_s: Floats) -> tuple[Ints, Floats, Ints]:
        """The fewest of the free subcarriers that make offloading cheaper than running locally.

        Returns how many (0: there is no such group), what the upload costs, and the free subcarriers from the best on:
        the first of them are the group.
        """
        if self.instance.contiguous:
            return smallest_runs(self, devices, free, limits_s)
        order = np.argsort(-self.gains[np.ix_(devices, free)], axis=1, kind="stable")
        ranked = np.take_along_axis(self.gains[np.ix_(devices, free)], order, axis=1)
        table = oracle(ranked, self.instance.bits[devices], self.instance.radio)
        costs_j = table.prefixes(limits_s - self.instance.releases_s[devices]).energy_j
        allowed = np.isin(np.arange(1, len(free) + 1), self.allowed_sizes(len(free)))
        saves = (costs_j < self.worth_j[devices][:, None]) & allowed
        first = np.argmax(saves, axis=1)
        sizes = np.where(saves.any(axis=1), first + 1, 0)
        return sizes, np.take_along_axis(costs_j, first[:, None], axis=1)[:, 0], free[order]

    def table(self, devices: Ints, groups: list[list[int]]) -> Oracle:
        """The oracle for devices with a group each; ask it for `whole` groups, any number of limits to a device."""
        gains = np.full((len(devices), max((len(group) for group in groups), default=1)), ABSENT)
        for row, (device, group) in enumerate(zip(devices.tolist(), groups, strict=True)):
            gains[row, : len(group)] = self.gains[device, group]
        return oracle(-np.sort(-gains, axis=1)[:, None], self.instance.bits[devices, None], self.instance.radio)


@dataclass(slots=True)
class PartialPlan:
    """Devices that offload so far, with their subcarriers and the latest moment their uploads may end."""

    site: SiteQuantities
    groups: dict[int, list[int]] = field(default_factory=dict)
    limits_s: dict[int, float] = field(default_factory=dict)

    def copy(self) -> PartialPlan:
        """An independent copy."""
        return PartialPlan(
            self.site, {device: list(group) for device, group in self.groups.items()}, dict(self.limits_s)
        )

    @property
    def devices(self) -> Ints:
        """Devices that offload, in the order of acceptance."""
        return np.array(list(self.groups), np.int64)

    def free(self) -> Ints:
        """Unassigned subcarriers."""
        return np.setdiff1d(self.site.all_subcarriers, [each for group in self.groups.values() for each in group])

    def limits(self) -> Floats:
        """Until when each of `devices` may upload."""
        return np.array([self.limits_s[device] for device in self.groups])

    def window_s(self, device: int) -> float:
        """How long the upload of a device may take."""
        return self.limits_s[device] - float(self.site.instance.releases_s[device])

    def uploads(self) -> Uploads:
        """The cheapest uploads of `devices`: how long they take, and what they cost."""
        times_s, energies_j = self.uploads_by(self.limits()[:, None])
        return Uploads(times_s[:, 0], energies_j[:, 0])

    def uploads_by(self, limits_s: Floats) -> Uploads:
        """The same for other limits: any number of columns, a row for each of `devices`."""
        windows_s = limits_s - self.site.instance.releases_s[self.devices, None]
        return self.site.table(self.devices, list(self.groups.values())).whole(windows_s)

    def worth_j(self) -> float:
        """What the plan saves over running everything locally, and what its devices are worth beyond."""
        if not self.groups:
            return 0.0
        return float((self.site.worth_j[self.devices] - self.uploads().energy_j).sum())

    def answer(self, policy: str, reasons: npt.NDArray[np.int8], start_s: Floats | None = None) -> Answer:
        """The plan as an answer. Starts are the limits unless given by device; nan drops a device from the CPU."""
        instance = self.site.instance
        starts = np.full(instance.num_devices, np.nan)
        starts[self.devices] = self.limits() if start_s is None else start_s
        offloads = ~np.isnan(starts)
        allocation = self._allocation(starts, offloads)
        saving_j = float((self.site.local_j - allocation.energies_j)[offloads].sum())
        extra_j = float(instance.values_j[offloads].sum())
        reasons = np.where(offloads, np.int8(Reason.OFFLOADS), reasons)
        return Answer(policy, allocation, saving_j, reasons, extra_j=extra_j)

    def _allocation(self, start_s: Floats, offloads: npt.NDArray[np.bool_]) -> Allocation:
        instance = self.site.instance
        owners = np.full(instance.num_subcarriers, UNASSIGNED)
        powers_w, upload_s = np.zeros(instance.num_subcarriers), np.full(instance.num_devices, np.nan)
        energies_j = self.site.local_j.copy()
        uploads = self.uploads() if self.groups else Uploads(np.zeros(0), np.zeros(0))
        for device, time_s in zip(self.groups, uploads.time_s.tolist(), strict=True):
            group = self.groups[device]
            owners[group] = device
            if offloads[device]:
                bits = float(instance.bits[device])
                powers_w[group] = least_powers(self.site.gains[device, group], bits, time_s, instance.radio)
                upload_s[device] = instance.releases_s[device] + time_s
                energies_j[device] = time_s * (instance.radio.circuit_power_w + powers_w[group].sum())
        return Allocation(offloads, owners, powers_w, upload_s, start_s, energies_j)


# Left-over subcarriers go where they save most -----------------------------------------------------------------------

WORTH_IT = 1e-12  # of the energy of an upload; a smaller reduction is rounding


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


# Newcomers: devices that could join a plan, with the CPU slot and the group they would get ----------------------------
#
# A newcomer runs in the order of deadlines, and all tasks as late as possible: the others may have to upload faster,
# and what that costs them is subtracted from the worth of the newcomer.


class Newcomers(NamedTuple):
    """Devices that could join a plan: the saving they add, and their groups as the first `sizes` of `ranked`."""

    devices: Ints
    gains_j: Floats
    sizes: Ints
    ranked: Ints


def consider(plan: PartialPlan, devices: Ints) -> Newcomers:
    """Which of the devices could join the plan and add to its saving."""
    site, accepted, free = plan.site, plan.devices, plan.free()
    releases_s = site.instance.releases_s
    own_s, others_s = site.starts_with_one_more(accepted, devices)
    fits = (own_s > releases_s[devices]) & (others_s > releases_s[accepted]).all(axis=1) & (len(free) > 0)
    devices, own_s, others_s = devices[fits], own_s[fits], others_s[fits]
    if len(devices) == 0:
        return Newcomers(devices, np.zeros(0), np.zeros(0, np.int64), np.zeros((0, 0), np.int64))
    sizes, costs_j, ranked = site.smallest_groups(devices, free, own_s)
    gains_j = np.where(sizes > 0, site.worth_j[devices] - costs_j, -np.inf) - _added_cost(plan, others_s)
    adds = gains_j > 0
    return Newcomers(devices[adds], gains_j[adds], sizes[adds], ranked[adds])


def _added_cost(plan: PartialPlan, others_s: Floats) -> Floats:
    """What the accepted devices would spend more with the starts of each row; inf if one could not upload in time."""
    if not plan.groups:
        return np.zeros(len(others_s))
    now_j = plan.uploads().energy_j[:, None]
    harm_j: Floats = (plan.uploads_by(others_s.T).energy_j - now_j).sum(axis=0)
    return harm_j


def accept(plan: PartialPlan, newcomers: Newcomers, index: int) -> None:
    """Let one of the newcomers join, and move the starts of all."""
    device = int(newcomers.devices[index])
    plan.groups[device] = newcomers.ranked[index, : newcomers.sizes[index]].tolist()
    reschedule(plan)


def reschedule(plan: PartialPlan) -> None:
    """Schedule all tasks of the plan as late as possible, in the order of deadlines."""
    chosen = plan.devices
    instance = plan.site.instance
    starts_s = latest_starts(instance.deadlines_s[chosen], plan.site.run_s[chosen], instance.num_cores)
    plan.limits_s = dict(zip(plan.groups, starts_s.tolist(), strict=True))
