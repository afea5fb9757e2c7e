"""Policies that share the radio and the CPU separately, or not at all: the baselines of the joint policies.

Yu, Zhang, Letaief, GLOBECOM 2016. `local` offloads no device. `radio_first` and `cpu_first` share one resource as if
the other were free, so a part of it is wasted. `min_group` ignores the CPU: a reference that no site can execute.
"""

from dataclasses import dataclass

import numpy as np

from takeup.core.arrays import Ints
from takeup.edge.model import Answer, Instance, Reason
from takeup.edge.solvers.partial_plan import (
    PartialPlan,
    SiteQuantities,
    assign_free_subcarriers,
    assign_groups,
    latest_starts,
    refusal_reasons,
    run_in_order,
)


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
