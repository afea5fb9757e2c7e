"""Policies that the reproduction compares with: admission in a fixed order, single exchanges, tasks appended."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from takeup.core.arrays import Ints
from takeup.edge.contract import Policy
from takeup.edge.model import Answer, Instance
from takeup.edge.policies import POLICIES
from takeup.edge.solvers.partial_plan import (
    Newcomers,
    PartialPlan,
    SiteQuantities,
    accept,
    assign_free_subcarriers,
    consider,
    refusal_reasons,
    reschedule,
)
from takeup.papers.edge.gma import Gma
from takeup.papers.edge.joint import CpuFirst, Joint, Local, MinimumGroups, RadioFirst

# CAR by priority: admit devices in an order that is fixed beforehand, each with the least that it needs.
#
# Wang, Huang, Yang, Pan, Wang: Unified Offloading Decision Making and Resource Allocation in ME-RAN, IEEE Transactions
# on Vehicular Technology 2019 (arXiv 1705.10384). Every device first decides by itself whether offloading can be in its
# interest. The site then goes through the requests, and admits each device that fits with those admitted before;
# admissions are never revoked. Devices that cannot finish their task themselves are first. The others are ordered by
# the energy they save (CAR-E in the paper) or by the rate they need, the smallest first (CAR-D).
#
# Our reading: both orders are tried and the better plan is the answer. Powers, groups, CPU slots and left-over
# subcarriers are as in the joint policy, so that only the order of admission differs from it.


@dataclass(frozen=True, slots=True)
class CarByPriority:
    """Admit in the order of savings or of rates, whichever ends up better."""

    name: str = "car_p"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance) -> Answer:
        """The allocation of the better order."""
        site = SiteQuantities(instance)
        promising = site.promising()
        plans = [_admit(site, order) for order in _orders(site, promising)]
        best = max(plans, key=PartialPlan.worth_j)
        return best.answer(self.name, refusal_reasons(site, promising))


def _orders(site: SiteQuantities, devices: Ints) -> list[Ints]:
    """Admission orders: devices too slow to run locally first; then the largest saving, or the smallest rate."""
    instance = site.instance
    can_wait = ~instance.too_slow[devices]
    costs_j = site.smallest_groups(devices, site.all_subcarriers, site.latest_s[devices])[1]
    rates_bps = instance.bits[devices] / (site.latest_s - instance.releases_s)[devices]
    return [devices[np.lexsort((key, can_wait))] for key in (costs_j - site.worth_j[devices], rates_bps)]


def _admit(site: SiteQuantities, waiting: Ints) -> PartialPlan:
    """Admit the next device that fits, repeatedly; a device that does not fit now never will."""
    plan = PartialPlan(site)
    while len((newcomers := consider(plan, waiting)).devices):
        accept(plan, newcomers, 0)
        waiting = newcomers.devices[1:]
    assign_free_subcarriers(plan)
    return plan


# JTORA: a local search over sets of offloading devices, one removed or exchanged at a time.
#
# Tran, Pompili: Joint Task Offloading and Resource Allocation for Multi-Server Mobile-Edge Computing Networks, IEEE
# Transactions on Vehicular Technology 2019 (arXiv 1705.00704); the steps are reconstructed, the text was not at hand.
# The worth of a set of (device, channel) pairs is that of the best powers and CPU times for it. The search begins with
# the best single pair. It removes a pair, or puts a new one in the place of those it conflicts with, while the worth
# grows by a factor of more than 1 + epsilon / n^2, n being the number of pairs.
#
# Our reading: there is one site, and a pair is a device with its smallest group, of one subcarrier or of as many as it
# needs. Powers come from the closed form of the energy oracle, which is the optimum that the paper bisects for. Tasks
# take turns on the CPU as in the joint policy, since ours cannot be divided. In every step the best change is made, and
# subcarriers that are left over at the end are handed out.

WORTH_IT = 1e-9  # of the worth; a smaller improvement is rounding


@dataclass(frozen=True, slots=True)
class Jtora:
    """Search among the `most_searched` devices that are worth most."""

    epsilon: float = 0.1
    most_searched: int = 500
    name: str = "jtora"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance) -> Answer:
        """The allocation that no removal or exchange improves."""
        site = SiteQuantities(instance)
        promising = site.promising()
        searched = promising[np.argsort(-site.worth_j[promising], kind="stable")][: self.most_searched]
        num_pairs = max(1, len(searched) * instance.num_subcarriers)
        plan, worth_j = PartialPlan(site), 0.0
        while True:
            better_j, better = max(_changes(plan, searched), key=lambda change: change[0], default=(0.0, plan))
            if better_j <= worth_j * (1 + max(self.epsilon / num_pairs**2, WORTH_IT)):
                break
            plan, worth_j = better, better_j
        assign_free_subcarriers(plan)
        return plan.answer(self.name, refusal_reasons(site, promising))


def _changes(plan: PartialPlan, devices: Ints) -> Iterator[tuple[float, PartialPlan]]:
    """Plans with one device less, and the best with one more or one replaced; with their worth."""
    for out in (None, *plan.groups):
        base = plan.copy()
        if out is not None:
            del base.groups[out]
            reschedule(base)
            yield base.worth_j(), base
        newcomers = consider(base, np.setdiff1d(devices, plan.devices))
        if len(newcomers.devices):
            best = int(np.argmax(newcomers.gains_j))
            base_j, trial = base.worth_j(), base.copy()
            accept(trial, newcomers, best)
            yield base_j + float(newcomers.gains_j[best]), trial


# The joint policy in its simplest form: a newcomer runs after those that were accepted before.


@dataclass(frozen=True, slots=True)
class JointAppend:
    """Accept the largest saving whose task can still run after all that were accepted before."""

    name: str = "joint_append"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance) -> Answer:
        """The allocation without any reordering."""
        site = SiteQuantities(instance)
        promising = site.promising()
        return _append(site, promising).answer(self.name, refusal_reasons(site, promising))


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


PUBLISHED: tuple[Policy, ...] = (
    *(Local(), RadioFirst(), CpuFirst(), MinimumGroups()),
    *(Joint(), JointAppend(), Gma(), CarByPriority(), Jtora()),
)
COMPARED: dict[str, Policy] = POLICIES | {policy.name: policy for policy in PUBLISHED}
