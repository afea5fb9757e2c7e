"""Plans under memory caps against the optimum of CP-SAT: `python -m benchmarks.training pipelines-caps [--draws 200]`.

Pipelines of 3x6, 4x6 and 4x8 (stages x micro-batches) with uneven stages, a third of the links slow, and memory for one
micro-batch less than there are stages up to one more. CP-SAT gets the order that was planned as a hint, and a limit;
where it does not prove its answer, its best answer counts. Seeds from 1000 up were not used for development. Also: how
long 16x128 with a cap takes. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import benchmarks.support.one_thread  # noqa: F401  before numpy

# isort: split
import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.support.dated import options_of, publish, versions
from takeup.core.progress import progress
from takeup.core.report import Cell, Check, Column, Report, Table
from takeup.training.pipelines.planners import find_policy
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.schedule import PipelinePlan

SHAPES = ((3, 6), (4, 6), (4, 8))
HELD_OUT, UNIT_S, CPSAT_S = 1000, 1e-4, 30.0
MEAN_BAR, MOST_BAR, LARGE_BAR_MS, NUM_LARGE = 0.01, 0.04, 30.0, 20


def draw(seed: int, shape: tuple[int, int], *, spare: int | None = None) -> Profile:
    """A pipeline whose times are whole tenths of a millisecond."""
    random = np.random.default_rng([seed, *shape])
    num_stages, num_microbatches = shape
    scale = np.exp(0.35 * random.standard_normal(num_stages))
    shares = random.uniform(0.7, 1.3, (num_stages, 3))
    cap = max(2, num_stages + (int(random.integers(-1, 2)) if spare is None else spare))
    times = [[_whole(10e-3 * each * share) for share in row] for each, row in zip(scale, shares, strict=True)]
    stages = tuple(Stage(f, b, w, activation_bytes=1, memory_bytes=cap) for f, b, w in times)
    links = tuple(
        Link(_whole(random.uniform(0, 20e-3)), _whole(random.uniform(0, 10e-3))) if random.random() < 0.35 else Link()
        for _ in range(num_stages - 1)
    )
    return Profile(stages, links, num_microbatches)


def _whole(seconds: float) -> float:
    return round(seconds / UNIT_S) * UNIT_S


def optimum_s(profile: Profile, plan: PipelinePlan, limit_s: float) -> tuple[float, bool]:
    """The shortest iteration that CP-SAT finds, and whether it proved it."""
    from ortools.sat.python import cp_model

    model, count = cp_model.CpModel(), profile.num_microbatches
    horizon = round(plan.iteration_s / UNIT_S)
    times = [[round(getattr(stage, f"{name}_s") / UNIT_S) for name in ("forward", "backward", "weight")]
             for stage in profile.stages]  # fmt: skip
    ops: Any = {
        (stage, kind, m): model.new_interval_var(start := model.new_int_var(0, horizon, ""), length, start + length, "")
        for stage, lengths in enumerate(times) for kind, length in enumerate(lengths) for m in range(count)
    }  # fmt: skip
    whole, wires = model.new_int_var(0, horizon, "whole"), dict[tuple[int, int], Any]()
    for (stage, kind, m), op in ops.items():
        model.add(op.end_expr() <= whole)
        if m + 1 < count:
            model.add(ops[stage, kind, m + 1].start_expr() >= op.end_expr())
        if kind < 2:
            _wait(model, ops, profile, wires, horizon, (stage, kind, m))
    for stage, cap in enumerate(profile.live_limits()):
        model.add_no_overlap([op for (at, _, _), op in ops.items() if at == stage])
        for m in range(count):
            model.add(ops[stage, 2, m].start_expr() >= ops[stage, 1, m].end_expr())
            if m + cap < count:
                model.add(ops[stage, 0, m + cap].start_expr() >= ops[stage, 2, m].end_expr())
    model.minimize(whole)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds, solver.parameters.num_workers = limit_s, 2
    state = solver.solve(model)
    found = solver.objective_value * UNIT_S if state in (cp_model.OPTIMAL, cp_model.FEASIBLE) else plan.iteration_s
    return min(found, plan.iteration_s), state == cp_model.OPTIMAL


def _wait(model: Any, ops: Any, profile: Profile, wires: dict[tuple[int, int], Any], horizon: int, at: Any) -> None:
    """An operation comes after the message it needs, which queues on its wire behind the one before."""
    stage, kind, m = at
    sender = stage - 1 if kind == 0 else stage + 1
    if sender == profile.num_stages:
        model.add(ops[at].start_expr() >= ops[stage, 0, m].end_expr())
    elif sender >= 0:
        link = profile.links[min(stage, sender)]
        service = round(link.service_s / UNIT_S)
        begin = model.new_int_var(0, horizon, "")
        model.add(begin >= ops[sender, kind, m].end_expr())
        if (stage, kind) in wires:
            model.add(begin >= wires[stage, kind] + service)
        wires[stage, kind] = begin
        model.add(ops[at].start_expr() >= begin + service + round(link.latency_s / UNIT_S))


class CappedDraw(NamedTuple):
    """One pipeline: ours and the optimum."""

    shape: tuple[int, int]
    gap: float
    stated: float
    is_proven: bool
    took_ms: float


def capped(num_draws: int, first: int, limit_s: float, tick: Callable[[], object]) -> list[CappedDraw]:
    """Gaps over the optimum, and as the plan states them."""
    found = []
    find_policy("adaptra").plan(draw(0, SHAPES[0]))
    for number in range(num_draws):
        shape = SHAPES[number % len(SHAPES)]
        profile = draw(first + number, shape)
        began_s = time.process_time()
        plan = find_policy("adaptra").plan(profile)
        took_ms = 1e3 * (time.process_time() - began_s)
        assert plan.fits_memory
        best_s, is_proven = optimum_s(profile, plan, limit_s)
        found.append(
            CappedDraw(shape, plan.iteration_s / best_s - 1, plan.iteration_s / plan.bound_s - 1, is_proven, took_ms)
        )
        tick()
    return found


def _row(shape: tuple[int, int], found: list[CappedDraw]) -> tuple[Cell, ...]:
    gaps, stated = (100 * np.array([getattr(each, name) for each in found]) for name in ("gap", "stated"))
    means = (gaps.mean(), np.median(gaps), gaps.max(), stated.mean(), np.median([each.took_ms for each in found]))
    return (f"{shape[0]}x{shape[1]}", len(found), sum(each.is_proven for each in found), *map(float, means))


def large_ms() -> list[float]:
    """CPU time of plans of 16x128 under caps."""
    times = []
    for seed in range(NUM_LARGE):
        profile = draw(HELD_OUT + seed, (16, 128), spare=seed % 3)
        began_s = time.process_time()
        find_policy("adaptra").plan(profile)
        times.append(1e3 * (time.process_time() - began_s))
    return times


def main() -> int:
    """All draws and bars."""
    parser = options_of(__doc__)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--first", type=int, default=HELD_OUT, help="the first seed")
    parser.add_argument("--limit-s", type=float, default=CPSAT_S, help="for one draw of CP-SAT")
    options: argparse.Namespace = parser.parse_args()
    with progress("draws", options.draws) as tick:
        found = capped(options.draws, options.first, options.limit_s, tick)
    rows = [_row(shape, [each for each in found if each.shape == shape]) for shape in SHAPES]
    shares = (Column(f"{name} gap", "%", 2) for name in ("mean", "median", "largest", "mean stated"))
    columns = (Column("pipeline"), Column("draws"), Column("proven"), *shares, Column("plan", "cpu ms", 2))
    gaps = np.array([each.gap for each in found])
    times = large_ms()
    checks = (
        Check.at_most("mean gap to the optimum", 100 * float(gaps.mean()), 100 * MEAN_BAR, unit="%"),
        Check.at_most("largest gap to the optimum", 100 * float(gaps.max()), 100 * MOST_BAR, unit="%"),
        Check.at_most("16x128 under a cap, median", float(np.median(times)), LARGE_BAR_MS, unit="cpu ms"),
    )
    table = Table(
        "Plans under memory caps", columns, tuple(rows), f"{versions(['numba', 'ortools'])}; seeds from {options.first}"
    )
    report = Report("Plans under memory caps against CP-SAT", "training", {}, options.first, (table,), checks=checks)
    return publish(report, "pipeline-caps", options)
