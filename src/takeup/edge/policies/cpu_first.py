"""CPU first: assign CPU slots to the tasks that cost most locally, then subcarriers where a group exists.

The second of the two separate allocations: slots are assigned in the order of deadlines, as late as possible. A device
without a group of subcarriers to upload before its slot runs locally, and its slot stays empty.
"""

from dataclasses import dataclass

import numpy as np

from takeup.core.arrays import Ints
from takeup.edge.model import Answer, Instance, Reason
from takeup.edge.solvers.partial_plan import SiteQuantities, latest_starts
from takeup.edge.solvers.radio import assign_free_subcarriers, assign_groups, refusal_reasons


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
