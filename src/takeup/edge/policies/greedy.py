"""Greedy: devices join one after the other while they add to the worth, at prices of subcarriers and CPU time.

A few rounds of prices give an order of the devices and a bound; there is no search. Some milliseconds for any radio and
any groups, and the same plan for the same instance.
"""

from dataclasses import dataclass

from takeup.edge.model import Answer, Instance
from takeup.edge.solvers.bounds import for_the_most_promising
from takeup.edge.solvers.market import Market

NUM_ROUNDS = 40  # of prices


@dataclass(frozen=True, slots=True)
class Greedy:
    """Accept devices one after the other."""

    name: str = "greedy"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance) -> Answer:
        """The plan that grows at prices, with their bound."""
        return for_the_most_promising(instance, self.name, self._grown)

    def _grown(self, instance: Instance) -> Answer:
        market = Market(instance)
        market.improve_prices(NUM_ROUNDS)
        market.use_prices()
        market.grow_plan()
        return market.answer(self.name)
