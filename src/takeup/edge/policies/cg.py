"""Column generation: the best mix of good columns, made whole, as a plan; with the bound that the prices give.

How it works. Prices for subcarriers and CPU time bring up, for every device, groups and start times that are worth
their price (`solvers.column_generation`). The best whole columns that fit together are a set of devices with groups,
from which the search of `joint_plus` begins once more. The answer is the better of both.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from takeup.core.arrays import Floats
from takeup.edge.model import Answer, Instance
from takeup.edge.policies.joint import JointPlus, improve, never
from takeup.edge.solvers.bounds import price, with_bound
from takeup.edge.solvers.column_generation import (
    ColumnSet,
    CombinedPricer,
    GeneratedColumns,
    GenerationRounds,
    ListedPricer,
    Pricer,
    SlotGrid,
    WidePricer,
    can_list,
    generate,
    list_groups,
    single_core_bound,
    slot_grid,
    solve_integer_master,
)

NUM_SLOTS, NUM_FINE_SLOTS = 32, 256  # for fractions of runs, and for whole ones
ROUNDS = GenerationRounds(60, 2)
MOST_ENTRIES = 800_000  # of device, slot and listed group
MOST_BITS = 62  # subcarriers in a mask
MOST_DEVICES = 200
MOST_COLUMNS = 120  # in the program of whole columns
MOST_NODES = 10
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class ColumnGeneration:
    """The better of `joint_plus` and of a plan made of the columns that prices bring up."""

    rounds: GenerationRounds = ROUNDS
    name: str = "cg"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance) -> Answer:
        """The better allocation, with a bound."""
        known = replace(JointPlus().allocate(instance), policy=self.name)
        if not can_generate(instance):
            return with_bound(instance, known, price(instance).bound_j)
        generated = generate_columns(instance, known, self.rounds)
        answer = answer_from_columns(instance, known, generated)
        return with_bound(instance, answer, generated.bound_j)


def can_generate(instance: Instance, num_slots: int = NUM_SLOTS) -> bool:
    """Whether the devices are few enough, and all groups can be listed or bounded by duality."""
    if not 0 < instance.num_devices <= MOST_DEVICES:
        return False
    return can_list(instance, num_slots) or not instance.radio.modulations


def generate_columns(
    instance: Instance,
    known: Answer,
    rounds: GenerationRounds = ROUNDS,
    is_over: Callable[[], bool] = never,
) -> GeneratedColumns:
    """Columns and prices, and a bound with a little for rounding."""
    grid = slot_grid(instance, NUM_SLOTS)
    generated = generate(instance, grid, _pricer(instance, grid), known.worth_j, rounds, is_over)
    bound_j = min(generated.bound_j, _single_core_bound(instance, generated.duals.subcarriers_j, known.worth_j))
    return generated._replace(bound_j=bound_j * (1 + ROUNDING))


def _single_core_bound(instance: Instance, prices_j: Floats, known_j: float) -> float:
    """Infinite where it cannot be had."""
    if instance.num_cores != 1 or not _is_listed(instance, NUM_FINE_SLOTS):
        return np.inf
    grid = slot_grid(instance, NUM_FINE_SLOTS)
    return single_core_bound(instance, grid, _pricer(instance, grid), prices_j, known_j)


def _pricer(instance: Instance, grid: SlotGrid) -> Pricer:
    num_slots = len(grid.capacity_s)
    if can_list(instance, num_slots):
        return ListedPricer(instance, list_groups(instance), grid)
    size = _listed_size(instance, num_slots)
    if size == 0:
        return WidePricer(instance, grid, 1)
    small = ListedPricer(instance, list_groups(instance, size), grid)
    return CombinedPricer(small, WidePricer(instance, grid, size + 1))


def _is_listed(instance: Instance, num_slots: int) -> bool:
    """Whether at least groups of one subcarrier are listed for all devices."""
    return can_list(instance, num_slots) or (_listed_size(instance, num_slots) > 0 and not instance.radio.modulations)


def _listed_size(instance: Instance, num_slots: int) -> int:
    """Up to how many subcarriers all groups are listed; above, duality has to do."""
    if instance.num_subcarriers > MOST_BITS:
        return 0
    count, groups, size = instance.num_subcarriers, 1, 0
    listed = 0
    while size < count - 1:
        groups = groups * (count - size) // (size + 1)
        listed += groups
        if listed * instance.num_devices * num_slots > MOST_ENTRIES:
            break
        size += 1
    return size


def answer_from_columns(instance: Instance, known: Answer, generated: GeneratedColumns) -> Answer:
    """The better of the known plan and the one made of whole columns, where groups are listed."""
    if not _is_listed(instance, NUM_SLOTS):
        return known
    grid = slot_grid(instance, NUM_SLOTS)
    columns = _promising(instance, grid, generated, known.worth_j)
    if len(columns.device) == 0:
        return known
    chosen = columns.only(solve_integer_master(instance, grid, columns, MOST_NODES))
    groups = {
        device: np.flatnonzero(members).tolist()
        for device, members in zip(chosen.device.tolist(), chosen.members, strict=True)
    }
    answer = replace(improve(instance, groups), policy=known.policy)
    return answer if answer.worth_j > known.worth_j else known


def _promising(instance: Instance, grid: SlotGrid, generated: GeneratedColumns, known_j: float) -> ColumnSet:
    """Columns that the prices do not rule out of a plan better than the known one, the best of them, each once."""
    columns, duals = generated.columns, generated.duals
    usage = grid.usage(columns.start_s, instance.run_s[columns.device])
    profits_j = columns.value_j - columns.members @ duals.subcarriers_j - usage @ duals.slots_j
    most_j = np.maximum(0.0, generated.profits_j.max(axis=1, initial=0.0))[columns.device]
    promises_j = generated.bound_j - most_j + profits_j
    keys = np.column_stack([columns.device, np.round(columns.start_s, 9), columns.members])
    first = np.unique(keys, axis=0, return_index=True)[1]
    first = first[promises_j[first] > known_j]
    return columns.only(first[np.argsort(-promises_j[first], kind="stable")][:MOST_COLUMNS])
