"""CAR by priority: admit devices in an order that is fixed beforehand, each with the least that it needs.

Wang, Huang, Yang, Pan, Wang: Unified Offloading Decision Making and Resource Allocation in ME-RAN, IEEE Transactions on
Vehicular Technology 2019 (arXiv 1705.10384). Every device first decides by itself whether offloading can be in its
interest. The site then goes through the requests, and admits each device that fits with those admitted before;
admissions are never revoked. Devices that cannot finish their task themselves are first. The others are ordered by the
energy they save (CAR-E in the paper) or by the rate they need, the smallest first (CAR-D).

Our reading: both orders are tried and the better plan is the answer. Powers, groups, CPU slots and left-over
subcarriers are as in the joint policy, so that only the order of admission differs from it.
"""

from dataclasses import dataclass

import numpy as np

from takeup.core.arrays import Ints
from takeup.edge.model import Answer, Instance
from takeup.edge.policies.joint import accept, consider
from takeup.edge.solvers.partial_plan import PartialPlan, SiteQuantities
from takeup.edge.solvers.radio import assign_free_subcarriers, refusal_reasons


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
