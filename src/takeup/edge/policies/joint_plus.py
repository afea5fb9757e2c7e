"""Joint plus: the joint policy by several measures of worth, then a search for better sets and better groups.

A greedy choice is wrong where one large task blocks two smaller ones. The search begins at the best of several greedy
plans and of the solution of an easier problem, whose value is a bound on what any allocation can save (see `bound`). It
takes one device out, puts another in, lets the plan grow again with whoever fits, and keeps the first change that saves
more. At the end subcarriers are moved and swapped between devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from takeup.edge.model import Answer, Instance
from takeup.edge.policies.bound import Relaxed, relax
from takeup.edge.policies.exchange import exchange
from takeup.edge.policies.joint import METRICS, accept, consider, grow, settle
from takeup.edge.policies.plan import Plan, Site
from takeup.edge.policies.radio import give_groups, hand_out, why_not
from takeup.edge.policies.schedule import latest_starts

__all__ = ["JointPlus"]

Ints = npt.NDArray[np.int64]

WORTH_IT = 1e-9  # of the saving; a smaller improvement is rounding


@dataclass(frozen=True, slots=True)
class JointPlus:
    """The best of all metrics, improved with the `most_searched` costliest; `most_tried` are tried in each place."""

    most_tried: int = 8
    most_searched: int = 300
    with_bound: bool = True
    name: str = "joint_plus"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance) -> Answer:
        """The best allocation found."""
        site = Site(instance)
        promising = site.promising()
        relaxed = relax(instance) if self.with_bound else None
        start = max(_starts(site, promising, relaxed), key=_filled_saving)
        costliest = promising[np.argsort(-site.worth_j[promising], kind="stable")][: self.most_searched]
        plan = self._search(start, costliest)
        answer = plan.answer(self.name, why_not(site, promising))
        return answer if relaxed is None else replace(answer, bound_j=relaxed.bound_j)

    def _search(self, core: Plan, promising: Ints) -> Plan:
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
        hand_out(core)
        exchange(core)
        return core

    def _neighbours(self, core: Plan, promising: Ints) -> Iterator[Plan]:
        """Plans with one device out or none and another in or none, grown again with whoever fits."""
        for out in (None, *core.groups):
            base = core.copy()
            if out is not None:
                del base.groups[out]
                settle(base)
                yield base
            absent = np.setdiff1d(promising, [*base.groups])
            newcomers = consider(base, absent[absent != out])
            for index in np.argsort(-newcomers.gains_j, kind="stable")[: self.most_tried].tolist():
                trial = base.copy()
                accept(trial, newcomers, index)
                grow(trial, absent[absent != newcomers.devices[index]])
                yield trial
            yield from self._regrouped_neighbours(base, absent[absent != out])

    def _regrouped_neighbours(self, base: Plan, absent: Ints) -> Iterator[Plan]:
        """Plans with one more device and new groups for all: it may fit once others give up or get subcarriers."""
        site = base.site
        for newcomer in absent[np.argsort(-site.worth_j[absent], kind="stable")][: self.most_tried].tolist():
            trial = _regrouped(site, np.append(base.devices, newcomer))
            if newcomer in trial.groups:
                grow(trial, absent[absent != newcomer])
                yield trial


def _regrouped(site: Site, devices: Ints) -> Plan:
    """Groups for these devices from nothing, each in time for its turn; who finds none is left out."""
    limits_s = np.full(site.instance.num_devices, np.nan)
    limits_s[devices] = latest_starts(site.instance.deadlines_s[devices], site.run_s[devices], site.instance.num_cores)
    plan = give_groups(site, devices, limits_s)
    settle(plan)
    return plan


def _starts(site: Site, promising: Ints, relaxed: Relaxed | None) -> Iterator[Plan]:
    """Plans to begin the search from: one for each metric, one with the devices of the relaxed problem first."""
    for metric in METRICS:
        plan = Plan(site)
        grow(plan, promising, metric)
        yield plan
    if relaxed is not None:
        plan = Plan(site)
        grow(plan, relaxed.devices)
        grow(plan, np.setdiff1d(promising, plan.devices))
        yield plan
        yield _regrouped(site, relaxed.devices)


def _saving_at_most(core: Plan) -> float:
    """What a plan would save if every device had all the free subcarriers: quicker to see than who should have them."""
    free = core.free().tolist()
    return Plan(core.site, {device: group + free for device, group in core.groups.items()}, core.limits_s).worth_j()


def _filled_saving(core: Plan) -> float:
    """What a plan of smallest groups saves once the other subcarriers are handed out."""
    full = core.copy()
    hand_out(full)
    return full.worth_j()
