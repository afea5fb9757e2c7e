"""Joint: accept, one after the other, the device that adds most saving with the CPU slot and group it would get.

Yu, Zhang, Letaief, GLOBECOM 2016. Both resources are checked before a device is accepted, so neither is wasted.
With `order="edf"` a newcomer takes the turn of its deadline and everyone runs as late as possible: the others may have
to upload faster, and what that costs them is part of the worth of the newcomer. With `order="append"` it runs after
those that were accepted before.

This is the plain version, which supports all radios and groups. The kernels (`fast`) give the same answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.edge.model import Answer, Instance
from takeup.edge.policies.plan import PartialPlan, SiteQuantities
from takeup.edge.policies.radio import assign_free_subcarriers, refusal_reasons
from takeup.edge.policies.schedule import latest_starts

Metric = Literal["saving", "per_subcarrier", "per_cpu_second", "per_bundle"]
METRICS: tuple[Metric, ...] = ("saving", "per_subcarrier", "per_cpu_second", "per_bundle")


@dataclass(frozen=True, slots=True)
class Joint:
    """Accept by the largest added saving, or by one of the other `METRICS`."""

    order: Literal["edf", "append"] = "edf"
    metric: Metric = "saving"
    name: str = "joint"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance) -> Answer:
        """The allocation that grows greedily on both resources."""
        if self.order == "append" or not has_kernels(instance):
            return self.allocate_plainly(instance)
        from takeup.edge.policies.fast.answers import greedy_answer

        return greedy_answer(instance, METRICS.index(self.metric), self.name)

    def allocate_plainly(self, instance: Instance) -> Answer:
        """The same without kernels."""
        site = SiteQuantities(instance)
        promising = site.promising()
        if self.order == "append":
            return _append(site, promising).answer(self.name, refusal_reasons(site, promising))
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


def _append(site: SiteQuantities, devices: Ints) -> PartialPlan:
    """Accept the largest saving whose task can still run after all that were accepted before."""
    plan = PartialPlan(site)
    busy_until_s = np.zeros(site.instance.num_cores)
    while len(devices) and len(plan.free()):
        sizes, costs_j, ranked = site.smallest_groups(devices, plan.free(), site.latest_s[devices])
        fits = (sizes > 0) & (busy_until_s.min() <= site.latest_s[devices])
        newcomers = Newcomers(devices[fits], (site.worth_j[devices] - costs_j)[fits], sizes[fits], ranked[fits])
        if not fits.any():
            break
        best = int(np.argmax(newcomers.gains_j))
        device = int(newcomers.devices[best])
        plan.groups[device] = newcomers.ranked[best, : newcomers.sizes[best]].tolist()
        plan.limits_s[device] = float(site.latest_s[device])
        core = int(np.argmin(busy_until_s))
        uploaded_s = float(site.instance.releases_s[device] + plan.uploads().time_s[-1])
        plan.limits_s[device] = max(float(busy_until_s[core]), uploaded_s)
        busy_until_s[core] = plan.limits_s[device] + float(site.run_s[device])
        devices = np.delete(newcomers.devices, best)
    assign_free_subcarriers(plan)
    return plan
