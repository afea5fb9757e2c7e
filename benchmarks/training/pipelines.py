"""Real pipelines with slow links: `python -m benchmarks.training pipelines [--part latency,healthy] [--json]`.

Four processes of PyTorch over Gloo train a small transformer whose operations take 20 ms each; messages over slow links
leave later. Stock 1F1B, stock ZB-H1 and the adaptive schedule, each predicted by the simulator from healthy runs and
then measured. `--out FOLDER` writes a dated result; `--part cables` gives ranks networks of their own and needs root.
Wants a machine with nothing else to do. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import benchmarks.support.one_thread  # noqa: F401  before numpy

# isort: split
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean, median

import numpy as np

from benchmarks.support.dated import options_of, publish, versions
from benchmarks.training.pipelines_healthy import NUM_TRIALS, healthy
from support.pipeline_lab.measured import ADAPTIVE, STOCK_1F1B, STOCK_ZB, LabRow, measure
from takeup.core.progress import progress
from takeup.core.report import Check, Column, Report, Table
from takeup.training.pipelines.planners import find_policy
from takeup.training.pipelines.profile import Link, Profile
from takeup.training.traces.profiles import random_profile

SEED = 1
NUM_STAGES, NUM_MICROBATCHES, OP_S = 4, 12, 0.020
SLOW_LINKS, DELAYS = ((2,), (0,), (0, 2)), (1, 2, 3)
SYSTEMS = (STOCK_1F1B, STOCK_ZB, ADAPTIVE)
NUM_ITERATIONS = 7
PLANNED = {(8, 32): (200, 2.0), (64, 512): (10, 500.0)}  # draws, and a bar in ms
ERROR_BAR, OVER_1F1B_BAR, OVER_ZB_BAR = 5.0, 1.2, 1.15
SWAP_BAR_MS, GRADIENT_BAR = 5.0, 1e-6
Part = tuple[list[Table], list[Check]]


def truth(link: Link, numbers: Sequence[int]) -> Profile:
    """The pipeline of all runs, with this link in some places."""
    return Profile.uniform(NUM_STAGES, NUM_MICROBATCHES, OP_S, dict.fromkeys(numbers, link))


# Slow links -----------------------------------------------------------------------------------------------------------


def latency(tick: Callable[[], object]) -> Part:
    """Every message over some links is late; any number may be under way."""
    return slow_part("latency", [truth(Link(n * OP_S), where) for where in SLOW_LINKS for n in DELAYS], tick)


def bandwidth(tick: Callable[[], object]) -> Part:
    """Some links serve one message at a time."""
    return slow_part("bandwidth", [truth(Link(0.0, n * OP_S), where) for where in SLOW_LINKS for n in DELAYS], tick)


def one_queue(tick: Callable[[], object]) -> Part:
    """Compute waits behind slow sends, as on a device with one hardware queue, unless a delegate sends."""
    truths = [replace(truth(Link(n * OP_S), (2,)), max_sends=1) for n in DELAYS]
    return slow_part("one queue", truths, tick)


def cables(tick: Callable[[], object]) -> Part:
    """As bandwidth, but a slow link is a cable between two network namespaces that carries little; needs root.

    Gloo begins a long message when its receive is posted. Stock schedules post receives late, and are slower than
    predicted, so the bar on predictions is missed here; the adaptive one posts them when an iteration begins.
    """
    truths = [truth(Link(0.0, n * OP_S), (2,)) for n in DELAYS]
    return slow_part("cables", truths, tick, by_cable=True)


def slow_part(name: str, truths: Sequence[Profile], tick: Callable[[], object], *, by_cable: bool = False) -> Part:
    """All systems on all pipelines, and the bars for slow links."""
    rows = measure(truths, SYSTEMS, NUM_ITERATIONS, tick, cables=by_cable)
    triples = [rows[i : i + len(SYSTEMS)] for i in range(0, len(rows), len(SYSTEMS))]
    errors = [100 * abs(row.error_share) for row in rows]
    swaps_ms = [1e3 * row.swap_s for row in rows if row.swap_s is not None]
    checks = [
        Check.at_most(f"{name}: error of predictions, mean of {len(errors)}", fmean(errors), ERROR_BAR, unit="%"),
        Check.at_least(f"{name}: faster than stock 1F1B, least", least(triples, 0), OVER_1F1B_BAR, unit="x"),
        Check.at_least(f"{name}: faster than stock ZB-H1, least", least(triples, 1), OVER_ZB_BAR, unit="x"),
        Check.at_most(f"{name}: hot swap, slowest rank, median", median(swaps_ms), SWAP_BAR_MS, unit="ms"),
        Check.at_most(f"{name}: gradients, relative error", max(row.gradient_error for row in rows), GRADIENT_BAR),
    ]
    return [rows_table(f"Slow links: {name}", triples)], checks


def least(triples: Sequence[Sequence[LabRow]], number: int) -> float:
    """By how much the adaptive schedule is faster than another one, where that is least."""
    return min(rows[number].measured_s / rows[-1].measured_s for rows in triples)


def rows_table(title: str, triples: Sequence[Sequence[LabRow]]) -> Table:
    """One row for every system and fault."""
    columns = (
        Column("fault"),
        Column("system"),
        Column("predicted", "ms", 0),
        Column("measured", "ms", 0),
        Column("error", "%", 1),
        Column("adaptive is faster by", "x", 2),
        Column("delegated links"),
        Column("longest swap", "ms", 2),
        Column("longest pause", "ms", 2),
    )
    cells = tuple(
        (
            row.faults,
            row.system,
            1e3 * row.predicted_s,
            1e3 * row.measured_s,
            100 * row.error_share,
            row.measured_s / rows[-1].measured_s,
            ", ".join(map(str, row.delegated)),
            None if row.swap_s is None else 1e3 * row.swap_s,
            None if row.pause_s is None else 1e3 * row.pause_s,
        )
        for rows in triples
        for row in rows
    )
    note = f"{NUM_STAGES} stages, {NUM_MICROBATCHES} micro-batches, operations of {1e3 * OP_S:g} ms; medians; "
    note += "a swap is part of a pause, in which ranks also plan and compare plans, four of them on the cores there are"
    return Table(title, columns, cells, note)


# Healthy links --------------------------------------------------------------------------------------------------------


def healthy_part(tick: Callable[[], object]) -> Part:
    """What adapting costs where there is nothing to adapt to."""
    return healthy(truth(Link(), ()), tick)


# Planning -------------------------------------------------------------------------------------------------------------


def planner(tick: Callable[[], object]) -> Part:
    """How long planning takes, over drawn pipelines of two sizes."""
    rows, checks = [], []
    for (num_stages, count), (num_draws, bar_ms) in PLANNED.items():
        times_ms = planning_times_ms(num_stages, count, num_draws)
        size = f"{num_stages} x {count}"
        rows.append((size, num_draws, median(times_ms), float(np.quantile(times_ms, 0.95)), max(times_ms)))
        checks.append(Check.at_most(f"planning {size}, slowest draw", max(times_ms), bar_ms, unit="ms"))
    tick()
    times = ("median", "p95", "slowest")
    columns = (Column("planning"), Column("draws", "", 0), *(Column(name, "ms of CPU", 2) for name in times))
    return [Table("Planning", columns, tuple(rows), "stages x micro-batches; the best of three each")], checks


def planning_times_ms(num_stages: int, count: int, num_draws: int) -> list[float]:
    """The CPU time of a plan for every draw."""
    adaptra = find_policy("adaptra")
    profiles = [random_profile(np.random.default_rng([SEED, n]), num_stages, count) for n in range(num_draws)]
    adaptra.plan(profiles[0])
    return [min(planning_ms(adaptra.plan, profile) for _ in range(3)) for profile in profiles]


def planning_ms(plan: Callable[[Profile], object], profile: Profile) -> float:
    """The CPU time of one plan."""
    start_s = time.process_time()
    plan(profile)
    return 1e3 * (time.process_time() - start_s)


# All of it ------------------------------------------------------------------------------------------------------------

PARTS: dict[str, tuple[Callable[[Callable[[], object]], Part], int]] = {
    "latency": (latency, 30),
    "bandwidth": (bandwidth, 30),
    "queue": (one_queue, 12),
    "cables": (cables, 12),
    "healthy": (healthy_part, NUM_TRIALS),
    "planner": (planner, 1),
}


def benchmark(names: Sequence[str]) -> Report:
    """The parts as one report."""
    with progress("benchmark pipeline", sum(PARTS[name][1] for name in names)) as tick:
        parts = [PARTS[name][0](tick) for name in names]
    return Report(
        title=f"Training: real pipelines with slow links ({', '.join(names)})",
        domain="training",
        scenario={"command": f"python -m benchmarks.training pipelines --part {','.join(names)}"},
        seed=SEED,
        tables=tuple(table for tables, _ in parts for table in tables),
        checks=tuple(check for _, checks in parts for check in checks),
        notes=(versions(("takeup", "torch", "numpy", "numba")),),
    )


def main() -> int:
    """Run, print, and say whether all bars hold."""
    parser = options_of(__doc__)
    usual = ",".join(name for name in PARTS if name != "cables")
    parser.add_argument("--part", default=usual, help=f"of {', '.join(PARTS)}, separated by commas")
    options = parser.parse_args()
    names = options.part.split(",")
    if unknown := sorted(set(names) - set(PARTS)):
        parser.error(f"there is no part {unknown[0]!r}; choose from {', '.join(PARTS)}")
    topic = "pipeline" if options.part == usual else f"pipeline-{'-'.join(names)}"
    return publish(benchmark(names), topic, options)
