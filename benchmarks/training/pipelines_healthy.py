"""What adapting costs where there is nothing to adapt to: a part of `pipeline.py`.

How it works. The same four processes run every iteration twice, in turns: by PyTorch's runtime and by the adaptive
schedule, both with the order of ZB-H1. So each iteration has its own yardstick, a second before or after it. Every
second iteration is measured and followed by an agreement; what that costs counts for one of `EVERY` iterations, as many
as there are by default. Medians of ratios, with their standard errors from a bootstrap. Beside it the CPU time that the
schedule adds, which other work on the machine does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

import numpy as np

from support.pipeline_lab.trials import LabTrial, TrialOutcome, run_trials
from takeup.core.arrays import Floats
from takeup.core.report import Cell, Check, Column, Table
from takeup.training.pipelines.planners import find_policy
from takeup.training.pipelines.profile import Profile

NUM_FEW, NUM_PAIRS, NUM_DRAWS, SEED = 11, 61, 2000, 1
EVERY = 10  # the default of AdaptiveSchedule
HEALTHY_BAR, MEASURING_BAR = 2.0, 0.5
NUM_TRIALS = 3


class Estimate(NamedTuple):
    """A median and its standard error, in per cent of an iteration."""

    percent: float
    error: float


def healthy(fine: Profile, tick: Callable[[], object]) -> tuple[list[Table], list[Check]]:
    """The adaptive schedule beside stock 1F1B and stock ZB-H1 on links that are not slow."""
    order = find_policy("zb_h1").plan(fine).schedule.to_csv()
    trials = [
        LabTrial("stock 1F1B", "stock_1f1b", fine, num_iterations=NUM_FEW),
        LabTrial("adaptive", "adaptive", fine, num_iterations=NUM_FEW, every=5),
        _pairs(fine, order),
    ]
    one_f_one_b, adaptive, pairs = run_trials(trials, tick)
    stock_s = median(pairs.stock_s[1:])
    above = 100 * (adaptive.settled_s / min(one_f_one_b.settled_s, stock_s) - 1)
    wall, cpu = _costs(_wall(pairs)), _costs(_cpu(pairs))
    checks = [
        Check.at_most("healthy: adaptive above stock", above, HEALTHY_BAR, unit="%"),
        Check.at_most("healthy: measuring, wall time", wall[-1].percent, MEASURING_BAR, unit="% of iteration"),
        Check.at_most("healthy: measuring, CPU time", cpu[-1].percent, MEASURING_BAR, unit="% of iteration"),
    ]
    found = {"stock 1F1B": one_f_one_b.settled_s, "stock ZB-H1": stock_s, "adaptive": adaptive.settled_s}
    return [_systems_table(found), _costs_table(wall, cpu)], checks


def _pairs(fine: Profile, order: str) -> LabTrial:
    """ZB-H1, with a planner that never has a better order."""
    return LabTrial(
        "pairs", "adaptive", fine, order, NUM_PAIRS, every=2, planner="one_f_one_b", timeout_s=240.0, beside_stock=True
    )


def _wall(pairs: TrialOutcome) -> Floats:
    """By how many per cent every iteration took longer than the one of the stock runtime beside it."""
    return np.asarray(100 * (np.array(pairs.iterations_s) / np.array(pairs.stock_s) - 1))


def _cpu(pairs: TrialOutcome) -> Floats:
    """How much more CPU time every iteration took, in per cent of an iteration."""
    added_s = np.array(pairs.cpus_s) - np.array(pairs.stock_cpus_s)
    return np.asarray(100 * added_s / median(pairs.stock_s[1:]))


def _costs(percents: Floats) -> list[Estimate]:
    """Of iterations that are not measured, of those that are, and of the mix of both; the first iteration connects."""
    plain, measured = _estimate(percents[2::2]), _estimate(percents[1::2])
    share = 1 / EVERY
    mixed = (1 - share) * plain.percent + share * measured.percent
    return [plain, measured, Estimate(mixed, float(np.hypot((1 - share) * plain.error, share * measured.error)))]


def _estimate(percents: Floats) -> Estimate:
    draws = np.random.default_rng(SEED).choice(percents, (NUM_DRAWS, percents.size))
    return Estimate(float(np.median(percents)), float(np.median(draws, axis=1).std()))


def _systems_table(found: dict[str, float]) -> Table:
    columns = (Column("system"), Column("measured", "ms", 2), Column("to stock ZB-H1", "%", 2))
    stock_s = found["stock ZB-H1"]
    cells = tuple((name, 1e3 * taken_s, 100 * (taken_s / stock_s - 1)) for name, taken_s in found.items())
    return Table("Healthy links", columns, cells, f"medians of {NUM_FEW - 1} iterations, of ZB-H1 of {NUM_PAIRS - 1}")


def _costs_table(wall: Sequence[Estimate], cpu: Sequence[Estimate]) -> Table:
    columns = (
        Column("iterations of ZB-H1"),
        Column("wall time added", "%", 2),
        Column("standard error", "%", 2),
        Column("CPU time added", "%", 2),
        Column("its standard error", "%", 2),
    )
    names = ("not measured", "measured, with an agreement", f"one of {EVERY} measured")
    cells: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *wall_cost, *cpu_cost) for name, wall_cost, cpu_cost in zip(names, wall, cpu, strict=True)
    )
    note = f"{NUM_PAIRS - 1} pairs of iterations; CPU time is the mean of ranks, in per cent of an iteration"
    return Table("What measuring costs", columns, cells, note)
