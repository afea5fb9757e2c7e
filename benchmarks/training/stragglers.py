"""Slow jobs detected, explained and helped: `python -m benchmarks.training stragglers [--part detectors,escalation]`.

`detectors` compares ours with the published rules and with ADWIN, Page-Hinkley, PELT and BEAST on the same drawn jobs,
each with its defaults and with what suits the development set best (see peers/change_points.py for what to install).
`escalation` compares plans for remedies, `solver` times the sharing of micro-batches, `topology` moves reductions off
slow links. Other parts are in modules named in ELSEWHERE; `recorded --from FOLDER` is of jobs that were recorded by
stragglers_record.py. Without --part: detectors, plans,
and what came back on real processes (recovery; as root, schedule), in some ten minutes. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import benchmarks.support.one_thread  # noqa: F401  before numpy
from takeup.core.arrays import Floats

# isort: split
import os
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.peers import change_points as peers
from benchmarks.support.dated import options_of, publish, versions
from support.node_placement import NodeGrid, improve_placement
from takeup.core.progress import progress
from takeup.core.report import Cell, Check, Column, Report, Table
from takeup.papers.falcon.detection import (
    Alarm,
    DetectionScore,
    OnlineChangePoints,
    SlidingWindow,
    draw_streams,
    score_of,
)
from takeup.papers.falcon.slowdowns import LARGE_MINUTES, IterationStream
from takeup.training.stragglers.detect.change_points import ChangePointDetector
from takeup.training.stragglers.remedy.rebalance import rebalance
from takeup.training.stragglers.remedy.restart import (
    LINK_MINUTES,
    DurationDistribution,
    Quantiles,
    Remedy,
    expected_loss_s,
    plan_escalation,
    ski_rental,
)

Alarms = Callable[..., list[Alarm]]
Part = tuple[list[Table], list[Check]]
Tick = Callable[[], object]
SEED = 0
NUM_DEVELOPMENT, NUM_HELD_OUT, NUM_HIT = 30, 120, 60
ACCURACY_BAR, PRECISION_BAR, RECALL_BAR, DELAY_BAR, RATE_BAR = 0.99, 0.98, 0.98, 5.0, 200_000
FALSE_BAR, ESCALATION_BAR, SOLVER_BAR_MS, TOPOLOGY_BAR = 1.0, 0.9, 50.0, 50.0


# Detectors ------------------------------------------------------------------------------------------------------------


class Contender(NamedTuple):
    """A detector, and what may be chosen for it on the development set."""

    name: str
    alarms: Alarms
    choices: Mapping[str, Sequence[float]]
    is_online: bool = True


def ours(times_s: Floats) -> list[Alarm]:
    """Our detector with its defaults."""
    return [(change.declared, change.is_onset) for change in ChangePointDetector().see(times_s)]


def online(times_s: Floats, **settings: float) -> list[Alarm]:
    """The published rule, read in hindsight."""
    return OnlineChangePoints(**settings).alarms(times_s)  # type: ignore[arg-type]


def window(times_s: Floats, **settings: float) -> list[Alarm]:
    """The sliding window of the paper."""
    return SlidingWindow(**settings).alarms(times_s)  # type: ignore[arg-type]


RATIOS = (0.08, 0.1, 0.12)
CONTENDERS = (
    Contender("BOCD+V, read literally", partial(online, is_literal=True), {}),
    Contender("BOCD, in hindsight", partial(online, verify=False), {"num_after": (3, 5, 8)}),
    Contender("BOCD+V, in hindsight", online, {"num_after": (5, 8, 18), "spread": (0.03, 0.1), "least_ratio": RATIOS}),
    Contender("sliding window", window, {"num_now": (5, 8, 11), "num_before": (20, 50), "least_ratio": RATIOS}),
    Contender("ADWIN", peers.adwin, {"delta": (0.002, 1e-4, 1e-8), "least_ratio": RATIOS}),
    Contender(
        "Page-Hinkley",
        peers.page_hinkley,
        {"threshold": (0.5, 1.0, 2.0, 5.0), "delta": (0.005, 0.05), "least_ratio": RATIOS},
    ),
    Contender("PELT", peers.pelt, {"penalty": (3.0, 10.0, 30.0), "least_ratio": RATIOS}, False),
    Contender("BEAST", peers.beast, {"least_probability": (0.5, 0.8), "least_ratio": RATIOS}, False),
)


def scored(alarms: Alarms, streams: Sequence[IterationStream], **settings: float) -> DetectionScore:
    """How good a detector is with these settings."""
    return score_of(lambda stream: alarms(stream.iterations_s, **settings), streams)


def fitted(contender: Contender, streams: Sequence[IterationStream]) -> dict[str, float]:
    """The settings with the best F1 on the development set."""
    settings = [dict(zip(contender.choices, values, strict=True)) for values in product(*contender.choices.values())]
    return max(settings, key=lambda each: scored(contender.alarms, streams, **each).f1)


def detectors(tick: Tick, options: Namespace) -> Part:
    """All detectors on held-out jobs, or those asked for; ours was developed on the development set."""
    half = NUM_DEVELOPMENT // 2
    development = [*draw_streams("development", half), *draw_streams("development hit", half, hit=True)]
    held_out = [*draw_streams("held out", NUM_HELD_OUT), *draw_streams("held out hit", NUM_HIT, hit=True)]
    rows = {"ours": scored(ours, held_out)}
    offline, missing = set[str](), list[str]()
    for contender in CONTENDERS:
        tick()
        is_there = contender.name not in peers.PEERS or peers.is_installed(contender.name)
        if not is_there or (options.against and contender.name not in options.against.split(";")):
            missing.append(contender.name)
            continue
        rows[f"{contender.name}, defaults"] = scored(contender.alarms, held_out)
        offline |= set() if contender.is_online else {f"{contender.name}, defaults", f"{contender.name}, fitted"}
        if contender.choices:
            settings = fitted(contender, development)
            rows[f"{contender.name}, fitted"] = scored(contender.alarms, held_out, **settings)
    tables = [_score_table(f"Detectors on {len(held_out)} held-out jobs", rows, offline, missing)]
    checks = _detector_checks(rows, points_per_s(held_out))
    return tables, checks


def _score_table(title: str, rows: Mapping[str, DetectionScore], offline: set[str], missing: Sequence[str]) -> Table:
    columns = (
        Column("detector"),
        Column("accuracy", "%", 1),
        Column("FPR as published", "%", 1),
        Column("FNR as published", "%", 1),
        Column("precision", digits=3),
        Column("recall", digits=3),
        Column("F1", digits=3),
        Column("delay", "iterations", 1),
        Column("false alarms in 10,000", digits=2),
    )
    cells = tuple(_score_cells(name, row, name in offline) for name, row in rows.items())
    number = next(iter(rows.values()))
    note = f"{number.num_hit} jobs are slow at times, {number.num_found + number.num_missed} changes; "
    note += "accuracy, FPR and FNR count jobs, with the denominators of the paper; no delay: has hindsight"
    note += f"; not run: {', '.join(missing)}" if missing else ""
    return Table(title, columns, cells, note)


def _score_cells(name: str, row: DetectionScore, is_offline: bool) -> tuple[Cell, ...]:
    shares = (100 * row.accuracy, 100 * row.published_fpr, 100 * row.published_fnr, row.precision, row.recall, row.f1)
    return (name, *shares, None if is_offline else row.delay, row.false_alarms)


def _detector_checks(rows: Mapping[str, DetectionScore], rate: float) -> list[Check]:
    own = rows["ours"]
    others = {name: row.f1 for name, row in rows.items() if name != "ours"}
    best = max(others, key=lambda name: others[name])
    return [
        Check.at_least("accuracy", own.accuracy, ACCURACY_BAR),
        Check.at_least("precision", own.precision, PRECISION_BAR),
        Check.at_least("recall", own.recall, RECALL_BAR),
        Check.at_most("median delay", own.delay, DELAY_BAR, unit="iterations"),
        Check.at_most("false alarms", own.false_alarms, FALSE_BAR, unit="in 10,000 iterations"),
        Check.at_least(f"F1 over that of the best other ({best})", own.f1 / max(others[best], 1e-9), 1.0, unit="times"),
        Check.at_least("points seen", rate, RATE_BAR, unit="a second of CPU time"),
    ]


def points_per_s(streams: Sequence[IterationStream]) -> float:
    """The best of five, on one core."""
    times_s = np.concatenate([stream.iterations_s for stream in streams])[:300_000]
    return max(len(times_s) / _cpu_s(lambda: ours(times_s)) for _ in range(5))


def _cpu_s(run: Callable[[], object]) -> float:
    began_s = time.process_time()
    run()
    return time.process_time() - began_s


# Escalation -----------------------------------------------------------------------------------------------------------

REMEDIES = (Remedy("nothing", 0.0, 0.35), Remedy("swap", 60.0, 0.13), Remedy("restart", 1800.0, 0.0))


def law_of(quantiles: Quantiles, num: int = 400) -> DurationDistribution:
    """Durations from points of their distribution, straight between logarithms."""
    shares, minutes = np.array(quantiles).T
    return DurationDistribution(tuple(60 * np.exp(np.interp((np.arange(num) + 0.5) / num, shares, np.log(minutes)))))


def escalation(tick: Tick, options: Namespace) -> Part:
    """Expected loss of the plan that knows the law, and of one that learns it, beside the published rule."""
    random = np.random.default_rng(SEED)
    laws = {
        "links, as in the paper": law_of(LINK_MINUTES),
        "at scale, as in the paper": law_of(LARGE_MINUTES),
        "exponential, 20 min": DurationDistribution(tuple(random.exponential(1200.0, 400) + 1e-3)),
        "Pareto, heavy tail": DurationDistribution(tuple(60 * (random.pareto(1.2, 400) + 0.5))),
        "short or very long": DurationDistribution(
            tuple(np.where(random.random(400) < 0.7, 30.0, 14_400.0) * random.uniform(0.8, 1.2, 400))
        ),
    }
    rows: list[tuple[Cell, ...]] = []
    ratios = {}
    for name, law in laws.items():
        published_s, known_s = (
            expected_loss_s(ski_rental(REMEDIES), law),
            expected_loss_s(plan_escalation(REMEDIES, law), law),
        )
        seen = DurationDistribution(tuple(random.choice(law.durations_s, 20)))
        learnt_s = expected_loss_s(plan_escalation(REMEDIES, seen), law)
        best_s = float(np.mean([min(r.cost_s + r.loss_share * each for r in REMEDIES) for each in law.durations_s]))
        nothing_s = REMEDIES[0].loss_share * float(np.mean(law.durations_s))
        rows.append(
            (name, nothing_s, published_s, known_s, learnt_s, best_s, known_s / published_s, learnt_s / published_s)
        )
        ratios[name] = known_s / published_s
    tick()
    names = ("nothing", "ski rental", "expected loss", "law from 20 events", "in hindsight")
    columns = (
        Column("durations"),
        *(Column(name, "s", 0) for name in names),
        Column("to ski rental", "x", 3),
        Column("from 20, to ski rental", "x", 3),
    )
    checks = [
        Check.at_most(
            f"loss to that of ski rental, {name}", ratio, ESCALATION_BAR if "paper" in name else 1.0, unit="x"
        )
        for name, ratio in ratios.items()
    ]
    note = "remedies: nothing loses 0.35, a swap costs 60 s and loses 0.13, a restart costs 1800 s and loses nothing"
    return [Table("When to apply which remedy", columns, tuple(rows), note)], checks


# Micro-batches --------------------------------------------------------------------------------------------------------


def solver(tick: Tick, options: Namespace) -> Part:
    """The least maximum for many groups; the paper's solver takes 36 s for 512."""
    random, rows = np.random.default_rng(SEED), list[tuple[Cell, ...]]()
    for num_groups, paper_s in ((16, 0.01), (64, 0.01), (128, 0.11), (256, 6.78), (512, 35.93), (4096, None)):
        paces = random.uniform(0.5, 2.0, num_groups).tolist()
        taken_ms = 1e3 * min(_cpu_s(lambda: rebalance(paces, 16 * len(paces))) for _ in range(5))  # noqa: B023
        rows.append((num_groups, paper_s, taken_ms))
    tick()
    columns = (Column("groups"), Column("paper", "s", 2), Column("ours, CPU time", "ms", 2))
    last_ms = float(str(rows[-1][2]))
    checks = [Check.at_most("4,096 groups", last_ms, SOLVER_BAR_MS, unit="cpu ms")]
    return [Table("Sharing out micro-batches", columns, tuple(rows), "16 for each group; the best of five")], checks


# Topology -------------------------------------------------------------------------------------------------------------

GRIDS: tuple[tuple[int, int, tuple[tuple[int, int], ...], dict[int, float]], ...] = (
    (2, 2, ((0, 2),), {}),
    (2, 4, ((0, 4),), {}),
    (2, 4, ((0, 4),), {1: 1.5, 6: 1.5}),
    (4, 4, ((0, 4), (8, 12)), {}),
    (8, 8, ((0, 8), (9, 17), (3, 4)), {}),
)


def grid_of(
    num_replicas: int, num_stages: int, slow: Sequence[tuple[int, int]], factors: Mapping[int, float]
) -> NodeGrid:
    """Nodes in order; slow links take twenty times as long."""
    byte_s = np.full((num_replicas * num_stages,) * 2, 1e-10)
    for one, other in slow:
        byte_s[one, other] = byte_s[other, one] = 2e-9
    places = tuple(tuple(range(row * num_stages, (row + 1) * num_stages)) for row in range(num_replicas))
    every = tuple(factors.get(node, 1.0) for node in range(num_replicas * num_stages))
    return NodeGrid(places, every, byte_s, 2 * num_stages, 0.02, 20_000_000, 2_000_000_000)


def topology(tick: Tick, options: Namespace) -> Part:
    """Slow links in reductions: other rings, then other places; all of it foretold by simulation."""
    rows: list[tuple[Cell, ...]] = []
    recovered, taken_s = list[float](), 0.0
    for num_replicas, num_stages, slow, factors in GRIDS:
        grid, healthy = grid_of(num_replicas, num_stages, slow, factors), grid_of(num_replicas, num_stages, (), factors)
        began_s = time.process_time()
        found = improve_placement(grid, num_iterations=500, pause_s=60.0)
        taken_s = time.process_time() - began_s
        recovered.append(100 * found.saving_s / (found.before_s - healthy.iteration_s))
        name = f"{num_replicas} x {num_stages}, {len(slow)} slow links, {len(factors)} slow nodes"
        rows.append((name, found.before_s, grid.iteration_s, found.after_s, found.num_moved, recovered[-1], taken_s))
    tick()
    times = (Column(title, "s", 2) for title in ("before", "other rings", "chosen"))
    columns = (Column("grid"), *times, Column("moved"), Column("recovered", "%", 0), Column("time", "cpu s", 2))
    checks = [
        Check.at_least("lost to slow links and recovered, least", min(recovered), TOPOLOGY_BAR, unit="%"),
        Check.at_most("64 nodes", taken_s, 2.0, unit="cpu s"),
    ]
    note = "moving nodes costs a pause of 60 s and is chosen if it pays off within 500 iterations"
    return [Table("Rings and places", columns, tuple(rows), note)], checks


# All of it ------------------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Tick, Namespace], Part]] = {
    "detectors": detectors,
    "escalation": escalation,
    "solver": solver,
    "topology": topology,
}
ELSEWHERE = {  # parts of other modules in this folder
    "noise": "stragglers_noise",
    "situations": "stragglers_situations",
    "whatif": "stragglers_whatif",
    "iterations": "stragglers_processes",
    "overhead": "stragglers_processes",
    "shim": "stragglers_shim",
    "locate": "stragglers_locate",
    "recorded": "stragglers_record",
    "recovery": "stragglers_remedies",
    "schedule": "stragglers_remedies",
    "restart": "stragglers_restart",
}
HELPED = ("recovery", "schedule") if os.geteuid() == 0 else ("recovery",)  # cables need root


def part_of(name: str) -> Callable[[Tick, Namespace], Part]:
    """A part of ours, or of another module."""
    found: Callable[[Tick, Namespace], Part] = PARTS.get(name) or getattr(
        import_module(f"benchmarks.training.{ELSEWHERE[name]}"), name
    )
    return found


def benchmark(names: Sequence[str], options: Namespace) -> Report:
    """The parts as one report."""
    total = sum(len(CONTENDERS) if name == "detectors" else 1 for name in names)
    with progress("benchmark stragglers", total) as tick:
        parts = [part_of(name)(tick, options) for name in names]
    installed = [each for each in ("river", "ruptures", "Rbeast") if find_spec(each)]
    return Report(
        title=f"Training: slow jobs ({', '.join(names)})",
        domain="training",
        scenario={"command": f"python -m benchmarks.training stragglers --part {','.join(names)}"},
        seed=options.seed,
        tables=tuple(table for tables, _ in parts for table in tables),
        checks=tuple(check for _, checks in parts for check in checks),
        notes=(versions(("takeup", "numpy", "numba", *installed)),),
    )


def main() -> int:
    """Run, print, and say whether all bars hold."""
    parser = options_of(__doc__)
    known = (*PARTS, *ELSEWHERE)
    parser.add_argument(
        "--part", default=",".join((*PARTS, *HELPED)), help=f"of {', '.join(known)}, separated by commas"
    )
    parser.add_argument("--against", default="", help="detectors to compare with, separated by ;  all if absent")
    parser.add_argument("--seed", type=int, default=SEED, help="of what locate draws")
    parser.add_argument("--cases", default="", help="of locate, separated by commas; all if absent")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="judge the cases of earlier runs of locate, too")
    parser.add_argument("--from", dest="folder", type=Path, metavar="FOLDER", help="where recorded jobs are, *.npz")
    options = parser.parse_args()
    names = options.part.split(",")
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"there is no part {unknown[0]!r}; choose from {', '.join(known)}")
    return publish(benchmark(names, options), f"stragglers-{'-'.join(names)}", options)
