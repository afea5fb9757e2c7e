"""Column generation: the master problem, dual prices with the bound they prove, and a tighter bound for one core."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csc_array

from takeup.core.arrays import Bools, Floats, Ints
from takeup.core.native_output import native_output_to_stderr
from takeup.edge.model import Instance
from takeup.edge.solvers.compiled.pricing import best_single_core_schedule

# Master problem of the column generation: a mix of columns (device, group, start) within every resource limit ---------
#
# Its dual values are prices. They give a bound at any time, not only at the end: no device can gain more than its best
# profit at these prices, and the resources are worth their price at most (see `generate`).


@dataclass(frozen=True, slots=True)
class SlotGrid:
    """Slots of CPU time: where they begin and end."""

    edges_s: Floats
    num_cores: int

    @property
    def capacity_s(self) -> Floats:
        """The CPU time in every slot."""
        return self.num_cores * np.diff(self.edges_s)

    def usage(self, start_s: Floats, run_s: Floats) -> Floats:
        """The share of every slot that runs take, one row for each."""
        ends_s = (start_s + run_s)[:, None]
        inside_s = np.minimum(ends_s, self.edges_s[1:]) - np.maximum(start_s[:, None], self.edges_s[:-1])
        shares: Floats = np.maximum(0.0, inside_s) / self.capacity_s
        return shares


def slot_grid(instance: Instance, num_slots: int) -> SlotGrid:
    """Equal slots from the first release to the last deadline."""
    first_s, last_s = float(instance.releases_s.min()), float(instance.deadlines_s.max())
    return SlotGrid(np.linspace(first_s, last_s, num_slots + 1), instance.num_cores)


class ColumnSet(NamedTuple):
    """Devices with a group and a start each, and what they are worth at most."""

    device: Ints
    members: Bools
    start_s: Floats
    value_j: Floats

    def only(self, rows: Ints | Bools) -> ColumnSet:
        """Some of them."""
        return ColumnSet(self.device[rows], self.members[rows], self.start_s[rows], self.value_j[rows])


def concatenate_columns(parts: list[ColumnSet]) -> ColumnSet:
    """The columns of several lists in one."""
    return ColumnSet(
        np.concatenate([part.device for part in parts]),
        np.concatenate([part.members for part in parts]),
        np.concatenate([part.start_s for part in parts]),
        np.concatenate([part.value_j for part in parts]),
    )


class Duals(NamedTuple):
    """Prices in joules: of every subcarrier, and of all CPU time of every slot."""

    subcarriers_j: Floats
    slots_j: Floats


class MasterSolution(NamedTuple):
    """The best mix: what it is worth, how much of every column it has, and the prices of the resources."""

    value_j: float
    shares: Floats
    duals: Duals


def solve_master(instance: Instance, grid: SlotGrid, columns: ColumnSet) -> MasterSolution:
    """The best mix of fractions of columns."""
    rows, scale_j = _rows(instance, grid, columns), float(columns.value_j.max())
    with native_output_to_stderr():
        found = linprog(-columns.value_j / scale_j, A_ub=rows, b_ub=np.ones(rows.shape[0]), method="highs")
    prices_j = np.maximum(0.0, -found.ineqlin.marginals) * scale_j
    first, second = instance.num_devices, instance.num_devices + instance.num_subcarriers
    return MasterSolution(-float(found.fun) * scale_j, found.x, Duals(prices_j[first:second], prices_j[second:]))


def solve_integer_master(instance: Instance, grid: SlotGrid, columns: ColumnSet, most_nodes: int) -> Ints:
    """The best mix of whole columns, as their numbers."""
    rows, scale_j = _rows(instance, grid, columns), float(columns.value_j.max())
    options = {"node_limit": most_nodes, "mip_rel_gap": 1e-4}
    constraint = LinearConstraint(rows, -np.inf, 1.0)
    with native_output_to_stderr():
        found = milp(
            -columns.value_j / scale_j, integrality=1, bounds=Bounds(0, 1), constraints=constraint, options=options
        )
    return np.zeros(0, np.int64) if found.x is None else np.flatnonzero(found.x > 0.5)


def _rows(instance: Instance, grid: SlotGrid, columns: ColumnSet) -> csc_array:
    """One row for each device, subcarrier and slot: what a column takes of it; there is one of each."""
    alone = np.zeros((len(columns.device), instance.num_devices))
    alone[np.arange(len(columns.device)), columns.device] = 1.0
    usage = grid.usage(columns.start_s, instance.run_s[columns.device])
    return csc_array(np.hstack([alone, columns.members, usage]).T)


# Column generation: prices for the resources, and the columns that are best at them, until both agree -----------------
#
# How it works. The master problem mixes the columns there are and says what resources are worth. At these prices every
# device's best column is computed. The sum of the prices and of the profits of all devices is a bound on any
# allocation; columns with a profit join the master. Prices are taken halfway between those of the best bound so far and
# those of the master, which jump.

SMOOTH = 0.5  # how far prices stay with those of the best bound
CLOSE = 1e-5  # of the bound; when the master is as near as this, nothing is to be had
MEMORY = 0.3  # how much of the excess of earlier rounds still counts
PATIENCE, SHORTER = 5, 0.6  # rounds without a better bound, after which steps become shorter
OFFERS_EACH = 3  # columns of a device that may join at once


class ColumnOffers(NamedTuple):
    """At some prices, by device and slot: no group and start gains more than `profits_j` there."""

    profits_j: Floats
    start_s: Floats


class Pricer(Protocol):
    """Finds the best column of every device in every slot at given prices."""

    def offers(self, duals: Duals) -> ColumnOffers:
        """How much they gain at most; -inf where a device cannot start."""

    def columns(self, devices: Ints, slots: Ints) -> ColumnSet:
        """Some of the columns behind the latest offers."""


class GenerationRounds(NamedTuple):
    """How long to look for prices: rounds of steps along the excess, then rounds of the master problem at most."""

    num_warm: int
    most: int


class GeneratedColumns(NamedTuple):
    """The best bound, the prices that gave it, the profits at them, and all columns."""

    bound_j: float
    duals: Duals
    profits_j: Floats
    columns: ColumnSet


def generate(
    instance: Instance,
    grid: SlotGrid,
    pricer: Pricer,
    known_j: float,
    rounds: GenerationRounds,
    is_over: Callable[[], bool] = lambda: False,
) -> GeneratedColumns:
    """Prices and columns after the rounds, or when it is over; `known_j` is what some allocation is worth."""
    best, columns = _subgradient_prices(instance, grid, pricer, known_j, rounds.num_warm, is_over)
    for _ in range(rounds.most):
        if is_over() or len(columns.device) == 0 or best.bound_j <= known_j * (1 + CLOSE):
            break
        mix = solve_master(instance, grid, columns)
        if best.bound_j - mix.value_j <= CLOSE * best.bound_j:
            break
        prices_j = SMOOTH * np.concatenate(best.duals) + (1 - SMOOTH) * np.concatenate(mix.duals)
        found = _evaluate_prices(instance, prices_j, pricer)
        columns = concatenate_columns([columns, _best_columns(pricer, found.profits_j)])
        best = found if found.bound_j < best.bound_j else best
    return GeneratedColumns(best.bound_j, best.duals, best.profits_j, columns)


def _subgradient_prices(
    instance: Instance, grid: SlotGrid, pricer: Pricer, known_j: float, num_rounds: int, is_over: Callable[[], bool]
) -> tuple[_PriceEvaluation, ColumnSet]:
    """Prices that rise where the best columns of all devices together take more than there is, and fall elsewhere.

    The step is the one that would lead to the known worth if the bound were straight (Polyak), and a part of it when
    the bound has not become better for some rounds.
    """
    prices_j = np.zeros(instance.num_subcarriers + len(grid.capacity_s))
    num_subcarriers, num_slots = instance.num_subcarriers, len(grid.capacity_s)
    scale = np.ones(num_subcarriers + num_slots)
    scale[num_subcarriers:] = max(1.0, (num_subcarriers / num_slots) ** 2)  # all CPU time of a slot costs much more
    excess, step_share, num_worse = np.zeros(len(prices_j)), 1.0, 0
    found = best = _evaluate_prices(instance, prices_j, pricer)
    parts: list[ColumnSet] = []
    for _ in range(max(1, num_rounds)):
        columns = _best_columns(pricer, found.profits_j, 1)
        parts.append(columns)
        excess = _usage(instance, grid, columns) - 1 + MEMORY * excess
        if is_over() or best.bound_j <= known_j * (1 + CLOSE) or not excess.any():
            break
        step_j = step_share * (found.bound_j - known_j) / (excess @ (scale * excess))
        prices_j = np.maximum(0.0, prices_j + step_j * scale * excess)
        found = _evaluate_prices(instance, prices_j, pricer)
        num_worse = 0 if found.bound_j < best.bound_j else num_worse + 1
        best = found if num_worse == 0 else best
        if num_worse == PATIENCE:
            step_share, num_worse = step_share * SHORTER, 1
    return best, concatenate_columns(parts)


def _usage(instance: Instance, grid: SlotGrid, columns: ColumnSet) -> Floats:
    """The share of every subcarrier and slot that the columns take together."""
    of_slots = grid.usage(columns.start_s, instance.run_s[columns.device]).sum(axis=0)
    return np.concatenate([columns.members.sum(axis=0), of_slots])


class _PriceEvaluation(NamedTuple):
    bound_j: float
    duals: Duals
    profits_j: Floats


def _evaluate_prices(instance: Instance, prices_j: Floats, pricer: Pricer) -> _PriceEvaluation:
    """The bound at prices of subcarriers and slots."""
    duals = Duals(prices_j[: instance.num_subcarriers], prices_j[instance.num_subcarriers :])
    profits_j = pricer.offers(duals).profits_j
    gained_j = np.maximum(0.0, profits_j.max(axis=1, initial=0.0))
    return _PriceEvaluation(float(prices_j.sum() + gained_j.sum()), duals, profits_j)


def _best_columns(pricer: Pricer, profits_j: Floats, most_each: int = OFFERS_EACH) -> ColumnSet:
    """The best few columns of every device, of those with a profit."""
    slots = np.argsort(-profits_j, axis=1, kind="stable")[:, :most_each]
    devices = np.broadcast_to(np.arange(len(slots))[:, None], slots.shape)
    gains = np.take_along_axis(profits_j, slots, axis=1) > 0
    return pricer.columns(devices[gains], slots[gains])


# A tighter bound for one core: only subcarriers have prices, and the schedule of the core is optimal ------------------
#
# At prices for subcarriers alone, the most that a device gains by starting in a slot is known, and a search finds
# the optimal schedule. Prices plus gains bound any allocation, without fractional runs: where few large tasks fit,
# fractional runs make the bound of `generate` weak.

MOST_NODES = 300_000  # some hundredths of a second
MOST_JOBS = 24  # in the search; the others are assumed not to compete for the core


def single_core_bound(instance: Instance, grid: SlotGrid, pricer: Pricer, prices_j: Floats, known_j: float) -> float:
    """At least what any allocation is worth, by these prices of subcarriers; infinite if the search is too long.

    `known_j` is what some allocation is worth: below it nothing is looked for.
    """
    assert instance.num_cores == 1, "the schedule is that of one core"
    offered_j = pricer.offers(Duals(prices_j, np.zeros(len(grid.capacity_s)))).profits_j
    most_j = np.maximum(0.0, offered_j.max(axis=1, initial=0.0))
    jobs = np.argsort(-most_j, kind="stable")[: min(MOST_JOBS, np.count_nonzero(most_j))]
    jobs = jobs[np.argsort(-instance.deadlines_s[jobs], kind="stable")]
    freely_j = float(prices_j.sum() + most_j.sum() - most_j[jobs].sum())
    offered_j = np.maximum.accumulate(offered_j[jobs], axis=1)  # no device gains less by starting later
    runs = instance.deadlines_s[jobs], instance.run_s[jobs]
    return freely_j + best_single_core_schedule(
        offered_j, grid.edges_s, *runs, max(0.0, known_j - freely_j), MOST_NODES
    )
