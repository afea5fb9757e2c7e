"""The policies of the paper: joint allocation, and its baselines that share the radio and the CPU separately.

Yu, Zhang, Letaief, GLOBECOM 2016. `local` offloads no device. `radio_first` and `cpu_first` share one resource as if
the other were free, so a part of it is wasted. `min_group` ignores the CPU: a reference that no site can execute.
"""

from dataclasses import dataclass

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.edge.model import Answer, Instance, Reason
from takeup.edge.solvers.partial_plan import (
    PartialPlan,
    SiteQuantities,
    accept,
    assign_free_subcarriers,
    consider,
    latest_starts,
    refusal_reasons,
)

# Joint: accept, one after the other, the device that adds most saving with the CPU slot and group it would get --------


@dataclass(frozen=True, slots=True)
class Joint:
    """Accept by the largest added saving: both resources are checked, so neither is wasted."""

    name: str = "joint"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance) -> Answer:
        """The allocation that grows greedily on both resources."""
        site = SiteQuantities(instance)
        promising = site.promising()
        plan = PartialPlan(site)
        grow(plan, promising)
        assign_free_subcarriers(plan)
        return plan.answer(self.name, refusal_reasons(site, promising))


def grow(plan: PartialPlan, devices: Ints) -> None:
    """Accept the device that adds most until none adds anything."""
    while True:
        newcomers = consider(plan, devices)
        if len(newcomers.devices) == 0:
            return
        best = int(np.argmax(newcomers.gains_j))
        accept(plan, newcomers, best)
        devices = devices[devices != newcomers.devices[best]]


# Separate allocation --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Local:
    """Offload no device."""

    name: str = "local"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance) -> Answer:
        """The allocation without offloading, which is always feasible."""
        return PartialPlan(SiteQuantities(instance)).answer(
            self.name, np.full(instance.num_devices, np.int8(Reason.NOT_CONSIDERED))
        )


# Radio first: subcarriers by largest saving, then the CPU in the order of deadlines, without preemption (Jeffay,
# Stanat, Martel, RTSS 1991). Devices that would be late run locally, and their subcarriers stay unused.


@dataclass(frozen=True, slots=True)
class RadioFirst:
    """Share subcarriers as if the CPU were free; run what fits."""

    name: str = "radio_first"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance) -> Answer:
        """The allocation, in which some devices hold subcarriers without using them."""
        site = SiteQuantities(instance)
        promising = site.promising()
        plan = assign_groups(site, promising, site.latest_s)
        assign_free_subcarriers(plan)
        reasons = refusal_reasons(site, promising)
        if not plan.groups:
            return plan.answer(self.name, reasons)
        chosen = plan.devices
        reasons[chosen] = Reason.MISSED_CPU
        ends_s = instance.releases_s[chosen] + plan.uploads().time_s
        starts_s = run_in_order(ends_s, instance.deadlines_s[chosen], site.run_s[chosen], instance.num_cores)
        return plan.answer(self.name, reasons, starts_s)


# CPU first: slots in the order of deadlines, as late as possible, for the tasks that cost most locally. A device
# without a group of subcarriers to upload before its slot runs locally, and its slot stays empty.


@dataclass(frozen=True, slots=True)
class CpuFirst:
    """Share the CPU as if the radio were free; upload what can be uploaded."""

    name: str = "cpu_first"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance) -> Answer:
        """The allocation, in which some CPU slots stay empty."""
        site = SiteQuantities(instance)
        promising = site.promising()
        chosen = _chosen(site, promising)
        starts_s = np.full(instance.num_devices, np.nan)
        starts_s[chosen] = latest_starts(instance.deadlines_s[chosen], site.run_s[chosen], instance.num_cores)
        reasons = refusal_reasons(site, promising)
        reasons[chosen] = Reason.MISSED_RADIO
        plan = assign_groups(site, chosen, starts_s)
        assign_free_subcarriers(plan)
        return plan.answer(self.name, reasons)


def _chosen(site: SiteQuantities, devices: Ints) -> Ints:
    """Tasks that fit on the CPU together, the most expensive ones first."""
    releases_s = site.instance.releases_s
    chosen = np.zeros(0, np.int64)
    while len(devices):
        own_s, others_s = site.starts_with_one_more(chosen, devices)
        devices = devices[
            (own_s > releases_s[devices]) & (others_s > releases_s[chosen]).all(axis=1)
        ]  # what does not fit now never will
        if len(devices):
            best = int(np.argmax(site.worth_j[devices]))
            chosen = np.append(chosen, devices[best])
            devices = np.delete(devices, best)
    return chosen


# Minimum groups: the step from running locally to offloading saves far more than one subcarrier more does, so each
# device gets the fewest subcarriers with which it saves, the largest saving first; then the rest is assigned.


@dataclass(frozen=True, slots=True)
class MinimumGroups:
    """Share subcarriers only; tasks may overlap on the CPU."""

    name: str = "min_group"
    ignores_cpu: bool = True

    def allocate(self, instance: Instance) -> Answer:
        """The allocation with an unlimited CPU."""
        site = SiteQuantities(instance)
        promising = site.promising()
        plan = assign_groups(site, promising, site.latest_s)
        assign_free_subcarriers(plan)
        return plan.answer(self.name, refusal_reasons(site, promising))


# What they are made of ------------------------------------------------------------------------------------------------


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


def run_in_order(uploads_s: Floats, deadlines_s: Floats, run_s: Floats, num_cores: int = 1) -> Floats:
    """Starts in the order of deadlines, each as early as its upload allows; nan for tasks that would be late."""
    starts_s = np.full(len(run_s), np.nan)
    free_s = np.zeros(num_cores)
    for task in np.argsort(deadlines_s, kind="stable").tolist():
        core = int(np.argmin(free_s))
        start_s = max(float(free_s[core]), float(uploads_s[task]))
        if start_s + run_s[task] <= deadlines_s[task]:
            starts_s[task] = start_s
            free_s[core] = start_s + float(run_s[task])
    return starts_s
