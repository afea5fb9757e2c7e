"""Joint: admit devices greedily on both resources; joint plus: then search for better sets and better groups.

Yu, Zhang, Letaief, GLOBECOM 2016, and a local search on top. Both have a plain version for all radios and groups; where
`has_kernels` holds, the kernels in `solvers.compiled` compute the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.edge.model import Answer, Instance
from takeup.edge.solvers.partial_plan import (
    PartialPlan,
    SiteQuantities,
    assign_free_subcarriers,
    assign_groups,
    exchange_subcarriers,
    latest_starts,
    refusal_reasons,
)
from takeup.errors import BadInput

if TYPE_CHECKING:
    from takeup.edge.solvers.compiled.arrays import SearchEffort


# Joint: accept, one after the other, the device that adds most saving with the CPU slot and group it would get --------
#
# Yu, Zhang, Letaief, GLOBECOM 2016. Both resources are checked before a device is accepted, so neither is wasted. A
# newcomer runs in the order of deadlines, and all tasks as late as possible: the others may have to upload faster, and
# what that costs them is subtracted from the worth of the newcomer.
#
# This is the plain version, which supports all radios and groups. The kernels (`compiled`) give the same answers.

Metric = Literal["saving", "per_subcarrier", "per_cpu_second", "per_bundle"]
METRICS: tuple[Metric, ...] = ("saving", "per_subcarrier", "per_cpu_second", "per_bundle")


@dataclass(frozen=True, slots=True)
class Joint:
    """Accept by the largest added saving, or by one of the other `METRICS`."""

    metric: Metric = "saving"
    name: str = "joint"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance) -> Answer:
        """The allocation that grows greedily on both resources."""
        if not has_kernels(instance):
            return self.allocate_plainly(instance)
        from takeup.edge.solvers.compiled.joint_kernel import greedy_answer

        return greedy_answer(instance, METRICS.index(self.metric), self.name)

    def allocate_plainly(self, instance: Instance) -> Answer:
        """The same without kernels."""
        site = SiteQuantities(instance)
        promising = site.promising()
        plan = PartialPlan(site)
        grow(plan, promising, self.metric)
        assign_free_subcarriers(plan)
        return plan.answer(self.name, refusal_reasons(site, promising))


def has_kernels(instance: Instance) -> bool:
    """Whether the kernels support the instance: rates by Shannon's formula, and any group."""
    return not (instance.contiguous or instance.group_sizes or instance.radio.modulations)


class Newcomers(NamedTuple):
    """Devices that could join a plan: the saving they add, and their groups as the first `sizes` of `ranked`."""

    devices: Ints
    gains_j: Floats
    sizes: Ints
    ranked: Ints


def grow(plan: PartialPlan, devices: Ints, metric: Metric = "saving") -> None:
    """Accept devices into the plan until none adds anything."""
    while True:
        newcomers = consider(plan, devices)
        if len(newcomers.devices) == 0:
            return
        best = int(np.argmax(_worth(plan.site, newcomers, metric)))
        accept(plan, newcomers, best)
        devices = devices[devices != newcomers.devices[best]]


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


def _worth(site: SiteQuantities, newcomers: Newcomers, metric: Metric) -> Floats:
    gains_j, run_s = newcomers.gains_j, site.run_s[newcomers.devices]
    if metric == "per_subcarrier":
        return gains_j / newcomers.sizes
    if metric == "per_cpu_second":
        return gains_j / run_s
    if metric == "per_bundle":
        shares = newcomers.sizes / site.instance.num_subcarriers
        return gains_j / (shares + run_s / float(site.instance.deadlines_s.max()))
    return gains_j


# Joint plus: the joint policy by several measures of worth, then a search for better sets and better groups -----------
#
# A greedy choice is wrong where one large task blocks two smaller ones. The search begins at the best of several greedy
# plans. It removes devices, adds others, grows the plan again with every device that fits, and keeps the first change
# that saves more. Subcarriers are moved and swapped between devices, and at the end the order on the cores. A promising
# set of devices, or a whole plan, can be given as a further warm start.
#
# This is the plain version, which supports all radios and groups; it removes and adds one device at a time. Where there
# are kernels (`compiled`) they search, also two at a time. Work is limited by a count of priced uploads, never by a
# clock.

GroupsByDevice = Mapping[int, Sequence[int]]


def never() -> bool:
    """No time limit."""
    return False


MOST_WORK = 10_000  # priced uploads: some milliseconds
WORTH_IT = 1e-9  # of the saving; a smaller improvement is rounding


@dataclass(frozen=True, slots=True)
class JointPlus:
    """The best of all metrics, improved with the `most_searched` costliest; `most_tried` newcomers per removal.

    The kernels stop after `most_work` priced uploads.
    """

    most_tried: int = 8
    most_searched: int = 300
    most_work: int = MOST_WORK
    name: str = "joint_plus"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance, starts: Sequence[GroupsByDevice] = ()) -> Answer:
        """The best allocation found, also from these plans: devices with their subcarriers, or with none yet."""
        for groups in starts:
            _check(instance, groups)
        if not has_kernels(instance):
            return self.allocate_plainly(instance, starts)
        from takeup.edge.solvers.compiled.joint_kernel import searched_answer

        return searched_answer(instance, starts, self.effort(), self.name)

    def effort(self) -> SearchEffort:
        """The search limits of the kernels."""
        from takeup.edge.solvers.compiled.arrays import BY_ALL, SearchEffort

        return SearchEffort(BY_ALL, self.most_tried, self.most_searched, self.most_work)

    def allocate_plainly(self, instance: Instance, starts: Sequence[GroupsByDevice] = ()) -> Answer:
        """The same as `allocate`, without kernels."""
        site = SiteQuantities(instance)
        promising = site.promising()
        made = _starts(site, promising, starts)
        start = max(made, key=_filled_saving)
        costliest = promising[np.argsort(-site.worth_j[promising], kind="stable")][: self.most_searched]
        return self._search(start, costliest).answer(self.name, refusal_reasons(site, promising))

    def _search(self, core: PartialPlan, promising: Ints) -> PartialPlan:
        """Take the first better neighbour until there is none; the plan with all subcarriers handed out."""
        saving_j = _filled_saving(core)
        neighbours = self._neighbours(core, promising)
        while (trial := next(neighbours, None)) is not None:
            if _saving_at_most(trial) <= saving_j:
                continue
            trial_j = _filled_saving(trial)
            if trial_j > saving_j * (1 + WORTH_IT):
                core, saving_j = trial, trial_j
                neighbours = self._neighbours(core, promising)
        assign_free_subcarriers(core)
        exchange_subcarriers(core)
        return core

    def _neighbours(self, core: PartialPlan, promising: Ints) -> Iterator[PartialPlan]:
        """Plans with at most one device removed and at most one added, then grown with every device that fits."""
        for out in (None, *core.groups):
            base = core.copy()
            if out is not None:
                del base.groups[out]
                reschedule(base)
                yield base
            absent = np.setdiff1d(promising, [*base.groups])
            newcomers = consider(base, absent[absent != out])
            for index in np.argsort(-newcomers.gains_j, kind="stable")[: self.most_tried].tolist():
                trial = base.copy()
                accept(trial, newcomers, index)
                grow(trial, absent[absent != newcomers.devices[index]])
                yield trial
            yield from self._regrouped_neighbours(base, absent[absent != out])

    def _regrouped_neighbours(self, base: PartialPlan, absent: Ints) -> Iterator[PartialPlan]:
        """Plans with one more device and new groups for all: it may fit once others release or get subcarriers."""
        site = base.site
        for newcomer in absent[np.argsort(-site.worth_j[absent], kind="stable")][: self.most_tried].tolist():
            trial = _regrouped(site, np.append(base.devices, newcomer))
            if newcomer in trial.groups:
                grow(trial, absent[absent != newcomer])
                yield trial


def improve(instance: Instance, groups: GroupsByDevice, *, most_work: int = MOST_WORK) -> Answer:
    """The best allocation found from a plan (devices and their subcarriers), which need not be feasible.

    Devices that cannot upload in time are removed, others join; the search begins there if no greedy plan is better.
    """
    return JointPlus(most_work=most_work).allocate(instance, [groups])


def _check(instance: Instance, groups: GroupsByDevice) -> None:
    """Refuse devices and subcarriers that do not exist, and subcarriers that two devices have."""
    used = list(chain.from_iterable(groups.values()))
    for kind, chosen, count in (
        ("device", list(groups), instance.num_devices),
        ("subcarrier", used, instance.num_subcarriers),
    ):
        unknown = [each for each in chosen if not 0 <= each < count]
        if unknown:
            raise BadInput(f"a start names {kind} {unknown[0]}, the instance has {count}; count them from 0")
    if len(set(used)) < len(used):
        twice = next(each for each in used if used.count(each) > 1)
        raise BadInput(f"a start gives subcarrier {twice} away twice; give it to one device")


def _regrouped(site: SiteQuantities, devices: Ints) -> PartialPlan:
    """New groups for these devices, each in time for its CPU start; devices without a group are left out."""
    limits_s = np.full(site.instance.num_devices, np.nan)
    limits_s[devices] = latest_starts(site.instance.deadlines_s[devices], site.run_s[devices], site.instance.num_cores)
    plan = assign_groups(site, devices, limits_s)
    reschedule(plan)
    return plan


def _starts(site: SiteQuantities, promising: Ints, starts: Sequence[GroupsByDevice]) -> Iterator[PartialPlan]:
    """Initial plans of the search: one for each metric, and each start after repair."""
    for metric in METRICS:
        plan = PartialPlan(site)
        grow(plan, promising, metric)
        yield plan
    for groups in starts:
        devices = np.intersect1d(promising, np.array(list(groups), np.int64))
        alone = PartialPlan(site)
        grow(alone, devices)
        for plan in (alone, _regrouped(site, devices), _repaired(site, groups)):
            grow(plan, np.setdiff1d(promising, plan.devices))
            yield plan


def _repaired(site: SiteQuantities, groups: GroupsByDevice) -> PartialPlan:
    """The plan without devices whose upload is too late or not worth its energy, the least worth removed first."""
    plan = PartialPlan(site, {device: list(group) for device, group in groups.items() if len(group)})
    reschedule(plan)
    while plan.groups and not (plan.uploads().energy_j < site.worth_j[plan.devices]).all():
        late = plan.devices[~(plan.uploads().energy_j < site.worth_j[plan.devices])]
        del plan.groups[int(late[np.argmin(site.worth_j[late])])]
        reschedule(plan)
    return plan


def _saving_at_most(core: PartialPlan) -> float:
    """What a plan would save if every device had all free subcarriers: an upper bound, cheaper than assigning them."""
    free = core.free().tolist()
    return PartialPlan(
        core.site, {device: group + free for device, group in core.groups.items()}, core.limits_s
    ).worth_j()


def _filled_saving(core: PartialPlan) -> float:
    """What a plan of smallest groups saves once the other subcarriers are assigned."""
    full = core.copy()
    assign_free_subcarriers(full)
    return full.worth_j()
