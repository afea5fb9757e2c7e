"""The part `whatif` of benchmarks/training/stragglers.py: the cause named in 300 generated traces and in public ones.

A generated job has up to 8 replicas, 8 stages and 16 micro-batches under 1F1B; one cause costs it something: a slow
worker, uneven stages, or sequences of different length; or there is none. All have jitter, workers and stages that
differ by a few per cent. A public trace is a Parquet file of StragglerAnalysis in --from FOLDER, its cause in TRUTH.
Right: the true cause and, for a worker, the true one. Seeds from 1000 up were not used for development.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.core.report import Cell, Check, Column, Table
from takeup.training.pipelines.planners import find_policy
from takeup.training.pipelines.profile import Profile
from takeup.training.stragglers.locate.whatif import diagnose
from takeup.training.traces.operations import load_operations

HELD_OUT, NUM_TRACES, RIGHT_BAR = 1000, 300, 0.95
CAUSES = ("worker", "stages", "sequence lengths", "none")
TRUTH = {"trace-AR": ("worker", (0, 0)), "trace-ST": ("stages", None), "trace-SE": ("sequence lengths", None)}
Worker = tuple[int, int] | None


class DrawnTrace(NamedTuple):
    """Durations, the orders of the stages, and the truth."""

    durations_s: Floats
    orders: tuple[Ints, ...]
    cause: str
    worker: Worker


def draw(seed: int) -> DrawnTrace:
    """One job."""
    random, cause = np.random.default_rng(seed), CAUSES[seed % len(CAUSES)]
    replicas, stages = int(random.integers(2, 9)), int(random.integers(2, 9))
    microbatches = int(random.integers(stages, 17))
    shape = int(random.integers(12, 33)), replicas, stages, microbatches, 2
    durations = np.exp(random.uniform(0.01, 0.06) * random.standard_normal(shape)) * np.array([0.01, 0.02])
    durations *= np.exp(0.01 * random.standard_normal((replicas, stages)))[None, :, :, None, None]
    stage_factors, worker = np.exp(0.01 * random.standard_normal(stages)), None
    if cause == "stages":
        stage_factors[random.choice([0, stages - 1])] *= random.uniform(1.25, 2.0)
    if cause == "worker":
        worker = int(random.integers(replicas)), int(random.integers(stages))
        durations[:, worker[0], worker[1]] *= random.uniform(1.3, 2.5)
    if cause == "sequence lengths":
        lengths = np.exp(random.uniform(0.3, 0.6) * random.standard_normal((shape[0], replicas, 1, microbatches, 1)))
        durations *= lengths
    return DrawnTrace(durations * stage_factors[:, None, None], _orders(stages, microbatches), cause, worker)


def _orders(num_stages: int, num_microbatches: int) -> tuple[Ints, ...]:
    schedule = find_policy("one_f_one_b").plan(Profile.uniform(num_stages, num_microbatches, 0.01)).schedule
    return tuple(
        np.array([(op.microbatch, int(op.kind != 0)) for op in schedule.ops(rank)]) for rank in range(num_stages)
    )


def judged(durations_s: Floats, orders: tuple[Ints, ...], cause: str, worker: Worker) -> tuple[bool, bool, str]:
    """Whether the cause is right, whether a wrong worker is blamed, and the verdict."""
    verdict = diagnose(durations_s, orders).verdict
    said = "none" if verdict is None else verdict.cause
    blamed = verdict.worker if verdict is not None and verdict.cause == "worker" else None
    return said == cause and blamed == worker, blamed is not None and blamed != worker, said


def whatif(tick: Callable[[], object], options: Namespace) -> tuple[list[Table], list[Check]]:
    """All traces."""
    found = [(draw(seed), seed) for seed in range(HELD_OUT, HELD_OUT + NUM_TRACES)]
    results = [(trace.cause, *judged(*trace)) for trace, _ in found]
    rows: list[tuple[Cell, ...]] = []
    for cause in CAUSES:
        these = [each for each in results if each[0] == cause]
        others = sorted({said for _, right, _, said in these if not right})
        rows.append(
            (cause, len(these), sum(each[1] for each in these), sum(each[2] for each in these), ", ".join(others))
        )
    for name, (cause, worker) in TRUTH.items() if options.folder else ():
        trace = load_operations(options.folder / f"{name}.parquet")
        right, wrong, said = judged(trace.durations_s, trace.orders, cause, worker)
        results.append((cause, right, wrong, said))
        rows.append((f"{name}, {cause}", 1, int(right), int(wrong), "" if right else said))
    tick()
    columns = (Column("true cause"), Column("traces"), Column("right"), Column("wrong worker"), Column("said instead"))
    return [Table("Causes of delay in traces", columns, tuple(rows))], [
        Check.at_least("right causes", 100 * float(np.mean([each[1] for each in results])), 100 * RIGHT_BAR, unit="%"),
        Check.at_most("wrong workers", sum(each[2] for each in results), 0),
    ]
