"""Radio first: share the subcarriers, then run what the CPU can still finish. The other subcarriers are wasted.

The first of the two separate allocations in Yu, Zhang, Letaief, GLOBECOM 2016. The CPU runs in
the order of deadlines without interruption (Jeffay, Stanat, Martel, RTSS 1991), and refuses what would be late.
"""

from dataclasses import dataclass

from takeup.edge.model import Answer, Instance, Reason
from takeup.edge.solvers.partial_plan import SiteQuantities, run_in_order
from takeup.edge.solvers.radio import assign_free_subcarriers, assign_groups, refusal_reasons


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
