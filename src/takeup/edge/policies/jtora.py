"""JTORA: a local search over sets of offloading devices, one removed or exchanged at a time.

Tran, Pompili: Joint Task Offloading and Resource Allocation for Multi-Server Mobile-Edge Computing Networks, IEEE
Transactions on Vehicular Technology 2019 (arXiv 1705.00704); the steps are reconstructed, the text was not at hand. The
worth of a set of (device, channel) pairs is that of the best powers and CPU times for it. The search begins with the
best single pair. It removes a pair, or puts a new one in the place of those it conflicts with, while the worth grows by
a factor of more than 1 + epsilon / n^2, n being the number of pairs.

Our reading: there is one site, and a pair is a device with its smallest group, of one subcarrier or of as many as it
needs. Powers come from the closed form of the energy oracle, which is the optimum that the paper bisects for. Tasks
take turns on the CPU as in the joint policy, since ours cannot be divided. In every step the best change is made, and
subcarriers that are left over at the end are handed out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from takeup.core.arrays import Ints
from takeup.edge.model import Answer, Instance
from takeup.edge.policies.joint import accept, consider, reschedule
from takeup.edge.solvers.partial_plan import PartialPlan, SiteQuantities
from takeup.edge.solvers.radio import assign_free_subcarriers, refusal_reasons

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
