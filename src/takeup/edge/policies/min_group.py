"""Minimum groups: share the radio as if every device had a dedicated CPU. A reference, not a contender.

Yu, Zhang, Letaief, GLOBECOM 2016. The step from running locally to offloading saves far more than one subcarrier more
does, so each device gets the fewest subcarriers with which it saves, the largest saving first; the rest is assigned.
"""

from dataclasses import dataclass

from takeup.edge.model import Answer, Instance
from takeup.edge.solvers.partial_plan import SiteQuantities
from takeup.edge.solvers.radio import assign_free_subcarriers, assign_groups, refusal_reasons


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
