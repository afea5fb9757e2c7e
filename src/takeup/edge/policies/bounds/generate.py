"""Column generation: prices for the resources, and the columns that are best at them, until both agree.

How it works. The master problem mixes the columns there are and says what resources are worth. At these prices every
device's best column is computed. The sum of the prices and of the profits of all devices is a bound on any
allocation; columns with a profit join the master. Prices are taken halfway between those of the best bound so far and
those of the master, which jump.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.edge.model import Instance
from takeup.edge.policies.bounds.master import ColumnSet, Duals, SlotGrid, concatenate_columns, solve_master

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
    instance: Instance, grid: SlotGrid, pricer: Pricer, known_j: float, rounds: GenerationRounds
) -> GeneratedColumns:
    """Prices and columns after the rounds; `known_j` is what some allocation is worth."""
    best, columns = _subgradient_prices(instance, grid, pricer, known_j, rounds.num_warm)
    for _ in range(rounds.most):
        if len(columns.device) == 0 or best.bound_j <= known_j * (1 + CLOSE):
            break
        mix = solve_master(instance, grid, columns)
        if best.bound_j - mix.value_j <= CLOSE * best.bound_j:
            break
        prices_j = SMOOTH * np.concatenate(best.duals) + (1 - SMOOTH) * np.concatenate(mix.duals)
        found = _evaluate_prices(instance, prices_j, pricer)
        columns = columns.joined(_best_columns(pricer, found.profits_j))
        best = found if found.bound_j < best.bound_j else best
    return GeneratedColumns(best.bound_j, best.duals, best.profits_j, columns)


def _subgradient_prices(
    instance: Instance, grid: SlotGrid, pricer: Pricer, known_j: float, num_rounds: int
) -> tuple[_PriceEvaluation, ColumnSet]:
    """Prices that rise where the best columns of all devices together take more than there is, and fall elsewhere.

    The step is the one that would lead to the known worth if the bound were straight (Polyak), and a part of it when
    the bound has not become better for some rounds.
    """
    prices_j = np.zeros(instance.num_subcarriers + len(grid.capacity_s))
    excess, step_share, num_worse = np.zeros(len(prices_j)), 1.0, 0
    found = best = _evaluate_prices(instance, prices_j, pricer)
    parts: list[ColumnSet] = []
    for _ in range(max(1, num_rounds)):
        columns = _best_columns(pricer, found.profits_j, 1)
        parts.append(columns)
        excess = _usage(instance, grid, columns) - 1 + MEMORY * excess
        if best.bound_j <= known_j * (1 + CLOSE) or not excess.any():
            break
        prices_j = np.maximum(0.0, prices_j + step_share * (found.bound_j - known_j) / (excess @ excess) * excess)
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
