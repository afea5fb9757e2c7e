"""Exact: the best allocation there is, where all groups of subcarriers can be listed; with a proof.

How it works. A plan to begin with comes from a short search (`solvers.market`). Prices for
subcarriers and CPU time tell what devices could
gain at most (`solvers.column_generation`). With them all plans are searched, except where the prices prove that nothing
better is to be found (`solvers.compiled.branch_and_bound`). Time is not discretised: starts and energies are those of
the real problem.

Where an instance is too large to list its groups, or to search through, the answer is the best plan found, and its
bound says how far it may be from the best.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from takeup.edge.model import Answer, Instance, Reason
from takeup.edge.solvers.bounds import for_the_most_promising, with_bound
from takeup.edge.solvers.column_generation import (
    GeneratedColumns,
    GenerationRounds,
    ListedPricer,
    SlotGrid,
    can_list,
    generate,
    group_of,
    list_groups,
    slot_grid,
)
from takeup.edge.solvers.compiled.branch_and_bound import PriceBounds, SearchTasks, search_plans, share_subcarriers
from takeup.edge.solvers.market import Market
from takeup.edge.solvers.partial_plan import PartialPlan, SiteQuantities

NUM_SLOTS = 24
NUM_ROUNDS, NUM_STEPS = 60, 300  # of prices and of the search for a first plan
MOST_QUICK_CHOICES = 10_000  # choices of device, slot and group, up to which prices need not be very good
QUICK, CAREFUL = GenerationRounds(60, 0), GenerationRounds(80, 8)
MOST_WORK = 100_000_000  # pairs of masks that the search looks at: about a second
CLOSE = 1e-6  # of the worth; a plan that is better by less is not looked for
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Exact:
    """Search all plans, as far as `most_work` goes."""

    most_work: int = MOST_WORK
    name: str = "exact"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance) -> Answer:
        """The best allocation, with a bound that is next to it unless the instance is too large."""
        return for_the_most_promising(instance, self.name, self._searched)

    def _searched(self, instance: Instance) -> Answer:
        market = Market(instance)
        market.improve_prices(NUM_ROUNDS)
        market.use_prices()
        market.improve_plan(NUM_STEPS)
        known = market.answer(self.name)
        return prove(instance, known, self.most_work) if can_list(instance, NUM_SLOTS) else known


def prove(instance: Instance, known: Answer, most_work: int) -> Answer:
    """A better plan than the known one, or a bound close to it; the groups of the instance must be listable."""
    groups, grid = list_groups(instance), slot_grid(instance, NUM_SLOTS)
    size = instance.num_devices * NUM_SLOTS << instance.num_subcarriers
    rounds = QUICK if size <= MOST_QUICK_CHOICES else CAREFUL
    generated = generate(instance, grid, ListedPricer(instance, groups, grid), known.worth_j, rounds)
    tasks = SearchTasks(instance.deadlines_s, instance.run_s, instance.releases_s, instance.worth_j, instance.num_cores)
    judge, start_s = _price_bounds(instance, grid, generated), np.full(instance.num_devices, np.nan)
    found_j = search_plans(groups, tasks, judge, known.worth_j, CLOSE, most_work, start_s)
    devices = np.flatnonzero(~np.isnan(start_s))
    masks = share_subcarriers(groups, devices, start_s[devices] - instance.releases_s[devices]).tolist()
    plan = PartialPlan(SiteQuantities(instance))
    for device, mask in zip(devices.tolist(), masks, strict=True):
        plan.groups[device], plan.limits_s[device] = group_of(mask), float(start_s[device])
    answer = plan.answer(known.policy, _refusals(known)) if plan.groups else known
    best = answer if answer.worth_j > known.worth_j else known
    bound_j = min(found_j, generated.bound_j) * (1 + ROUNDING)
    return with_bound(instance, replace(best, bound_j=known.bound_j, prices=known.prices), bound_j)


def _refusals(known: Answer) -> npt.NDArray[np.int8]:
    """Why devices do not offload, for those that offloaded in the known plan as well."""
    return np.where(known.reasons == Reason.OFFLOADS, np.int8(Reason.CROWDED_OUT), known.reasons)


def _price_bounds(instance: Instance, grid: SlotGrid, generated: GeneratedColumns) -> PriceBounds:
    """The prices in the form in which the search asks for them."""
    of_mask_j = np.zeros(1)
    for price_j in generated.duals.subcarriers_j.tolist():
        of_mask_j = np.concatenate([of_mask_j, of_mask_j + price_j])
    profits_j = np.maximum.accumulate(np.maximum(0.0, generated.profits_j), axis=1)
    omega = np.concatenate([[0.0], np.cumsum(generated.duals.slots_j)]) / instance.num_cores
    return PriceBounds(grid.edges_s, omega, of_mask_j[::-1].copy(), profits_j)
