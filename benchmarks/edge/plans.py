"""How good and how fast plans for offloading are: `python -m benchmarks.edge plans [--json] [--out FOLDER] [--play]`.

Prints one report: gaps and times of all policies against the exact optimum in the paper's cell, against a certified
bound where uploads are long, and times of large cells. `--play` also plays plans with real bytes and
real work, which wants a machine with nothing else to do. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import benchmarks.support.one_thread  # noqa: F401  before numpy

# isort: split
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.support.dated import options_of, publish, versions
from takeup.core.progress import progress
from takeup.core.report import Check, Column, Report, Table
from takeup.edge.engines import find_engine
from takeup.edge.model import Answer, Instance
from takeup.edge.planning import solve
from takeup.edge.traces.generators import paper_setting, radio_tight_setting
from takeup.edge.validate import violation_of_answer
from takeup.papers.edge.baselines import COMPARED

SEED = 1000
DEVICES, NUM_PAPER, NUM_TIGHT = (4, 5, 6, 7, 8, 9), 100, 50
POLICIES = ("radio_first", "cpu_first", "joint", "car_p", "jtora", "gma", "greedy")
NUM_PLAYED = 25

EXACT_BAR_MS, PLUS_MEAN_BAR, PLUS_MAX_BAR = 150.0, 0.3, 5.0
AUTO_BAR_S, AUTO_MEAN_BAR, AUTO_MAX_BAR, PLUS_BAR_MS = 0.5, 2.0, 6.0, 5.0
LARGE_BAR_S, HUGE_BAR_S, PLAY_BAR_MS = 10.0, 1.0, 2.0


@dataclass(frozen=True, slots=True)
class Timed:
    """An answer, and the CPU seconds it took."""

    answer: Answer
    cpu_s: float


def timed(instance: Instance, policy: str) -> Timed:
    """The answer of a policy, checked by the validator after the clock has stopped."""
    chosen = COMPARED[policy]
    began_s = time.process_time()
    answer = solve(instance) if policy == "auto" else chosen.allocate(instance)  # auto within its budget of 0.5 s
    cpu_s = time.process_time() - began_s
    violation = violation_of_answer(instance, answer, ignores_cpu=chosen.ignores_cpu)
    assert violation is None, (policy, violation)
    return Timed(answer, cpu_s)


def warm_up() -> None:
    """Compile and load everything once."""
    for make in (paper_setting, radio_tight_setting):
        for policy in (*POLICIES, "exact", "auto"):
            if policy != "exact" or make is paper_setting:
                timed(make(np.random.default_rng(0), 6), policy)


def gaps_table(title: str, rows: dict[str, tuple[list[float], list[float]]], note: str) -> Table:
    """One row for each policy: gaps in percent, times in milliseconds."""
    names = ("mean gap", "largest gap")
    columns = (
        Column("policy"),
        *(Column(name, "%", 3) for name in names),
        Column("mean time", "ms"),
        Column("p99", "ms"),
    )
    return Table(
        title,
        columns,
        tuple(
            (name, float(np.mean(gaps)), max(gaps), float(np.mean(times)), float(np.quantile(times, 0.99)))
            for name, (gaps, times) in rows.items()
        ),
        note,
    )


# The paper's cell -----------------------------------------------------------------------------------------------------


def paper_cells(tick: Callable[[], None]) -> tuple[Table, list[Check]]:
    """Every policy against the exact optimum, 100 cells for each number of devices."""
    rows: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in (*POLICIES, "auto", "exact")}
    means: dict[str, list[float]] = {name: [] for name in rows}
    for num_devices in DEVICES:
        cells = [paper_setting(np.random.default_rng([SEED, num_devices, n]), num_devices) for n in range(NUM_PAPER)]
        best = [timed(cell, "exact") for cell in cells]
        _add(rows["exact"], best, best)
        for name in (*POLICIES, "auto"):
            _add(rows[name], [timed(cell, name) for cell in cells], best)
            means[name].append(float(np.mean(rows[name][0][-NUM_PAPER:])))
        tick()
    unproven = sum(gap > 0.01 for gap in rows["exact"][0])
    gaps, times = rows["auto"][0], rows["exact"][1]
    checks = [
        Check.at_most("exact, slowest", max(times), EXACT_BAR_MS, unit="ms"),
        Check.at_most("exact, cells without a proof to 0.01 %", unproven, 0),
        Check.at_most("auto, mean gap, largest over M", max(means["auto"]), PLUS_MEAN_BAR, unit="%"),
        Check.at_most("auto, largest gap", max(gaps), PLUS_MAX_BAR, unit="%"),
    ]
    note = f"{NUM_PAPER} cells for each of M = {DEVICES[0]} to {DEVICES[-1]}, N = 4; gaps to the exact optimum"
    return gaps_table("The paper's cell", rows, note), checks


def _add(row: tuple[list[float], list[float]], found: Sequence[Timed], best: Sequence[Timed]) -> None:
    """Gaps to the best known worth; for the best itself, to its own bound."""
    for each, top in zip(found, best, strict=True):
        limit_j = top.answer.bound_j if each is top else top.answer.worth_j
        assert limit_j is not None
        row[0].append(100 * max(0.0, 1 - each.answer.worth_j / limit_j) if limit_j > 0 else 0.0)
        row[1].append(1000 * each.cpu_s)


# Where uploads are long -----------------------------------------------------------------------------------------------


def tight_cells(tick: Callable[[], None]) -> tuple[Table, list[Check]]:
    """Every policy against the bound of auto."""
    rows: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in (*POLICIES, "auto")}
    for number in range(NUM_TIGHT):
        cell = radio_tight_setting(np.random.default_rng(SEED + number), 20)
        auto = timed(cell, "auto")
        for name, (gaps, times) in rows.items():
            found = auto if name == "auto" else timed(cell, name)
            gaps.append(100 * (1 - found.answer.worth_j / (auto.answer.bound_j or 1.0)))
            times.append(1000 * found.cpu_s)
        tick()
    gaps, times = rows["auto"]
    checks = [
        Check.at_most("auto, certified gap, mean", float(np.mean(gaps)), AUTO_MEAN_BAR, unit="%"),
        Check.at_most("auto, certified gap, largest", max(gaps), AUTO_MAX_BAR, unit="%"),
        Check.at_most("auto, slowest", max(times) / 1000, AUTO_BAR_S, unit="s"),
        Check.at_most("greedy, mean time", float(np.mean(rows["greedy"][1])), PLUS_BAR_MS, unit="ms"),
    ]
    note = (
        f"M = 20, N = 16, seeds {SEED} to {SEED + NUM_TIGHT - 1}; gaps to the bound of auto, so the true loss is less"
    )
    return gaps_table("Where uploads are long", rows, note), checks


# Large cells ----------------------------------------------------------------------------------------------------------


def large_cells(tick: Callable[[], None]) -> tuple[Table, list[Check]]:
    """Times of large cells."""
    hundred = timed(radio_tight_setting(np.random.default_rng(SEED), 100, 100, 40e9), "auto")
    tick()
    thousand = timed(radio_tight_setting(np.random.default_rng(SEED), 1000, 273, 400e9), "greedy")
    tick()
    million = timed(paper_setting(np.random.default_rng(SEED), 1_000_000), "greedy")
    tick()
    columns = (Column("load"), Column("policy"), Column("CPU time", "s"), Column("gap", "%", 2))
    rows = (
        ("100 devices, 100 subcarriers", "auto", hundred.cpu_s, 100 * (hundred.answer.gap_share or 0.0)),
        ("1,000 devices, 273 subcarriers", "greedy", thousand.cpu_s, None),
        ("1,000,000 devices, 4 subcarriers", "greedy", million.cpu_s, None),
    )
    checks = [
        Check.at_most("100 x 100, certified", hundred.cpu_s, LARGE_BAR_S, unit="s"),
        Check.at_most("1,000 x 273, heuristic", thousand.cpu_s, HUGE_BAR_S, unit="s"),
    ]
    return Table("Large cells", columns, rows), checks


# Played for real ------------------------------------------------------------------------------------------------------


def played_cells(tick: Callable[[], None]) -> tuple[Table, list[Check]]:
    """Plans with real bytes over TCP and real work on a core: who is done in time, and how late the others are."""
    rows, over_ms = [], []
    engine = find_engine("cloudlet")
    for policy, dispatch in (("auto", "planned"), ("min_group", "edf")):
        cells = [paper_setting(np.random.default_rng([SEED, 7, n]), 8) for n in range(NUM_PLAYED)]
        played = [
            engine(dispatch=dispatch, real_time=True).play(cell, timed(cell, policy).answer.allocation)
            for cell in cells
        ]
        late = [task.over_plan_s or 0.0 for run in played for task in run.tasks]
        total, met = sum(len(run.tasks) for run in played), sum(run.num_met for run in played)
        rows.append((policy, total, met, 1000 * float(np.median(late)), 1000 * float(np.quantile(late, 0.99))))
        over_ms.append(rows[-1][4])
        tick()
    columns = (
        Column("plan"),
        Column("jobs"),
        Column("in time"),
        Column("over plan, p50", "ms", 3),
        Column("over plan, p99", "ms", 3),
    )
    note = f"{NUM_PLAYED} cells of the paper, M = 8; min_group ignores the CPU, as a plan of the radio alone does"
    checks = [
        Check.at_most("planned jobs that were late", rows[0][1] - rows[0][2], 0),
        Check.at_most("over plan, p99", over_ms[0], PLAY_BAR_MS, unit="ms"),
        Check.at_least("late jobs of the radio-only plan", rows[1][1] - rows[1][2], 1),
    ]
    return Table("Played for real", columns, tuple(rows), note), checks


def measure(play: bool) -> Report:
    """All parts as one report."""
    warm_up()
    with progress("benchmark edge", len(DEVICES) + NUM_TIGHT + 3 + 2 * play) as tick:
        parts = [paper_cells(tick), tight_cells(tick), large_cells(tick)] + ([played_cells(tick)] if play else [])
    command = f"python -m benchmarks.edge plans{' --play' if play else ''}"
    packages = versions(("takeup", "numpy", "scipy", "numba"))
    return Report(
        title="Edge: gaps and times of plans for offloading",
        domain="edge",
        scenario={"command": command},
        seed=SEED,
        tables=tuple(table for table, _ in parts),
        checks=tuple(check for _, checks in parts for check in checks),
        notes=(
            f"Command: {command}. Versions: {packages}. Linear algebra on one thread.",
            "Times are CPU seconds of one run each, after everything was compiled. Every answer passed the validator. "
            "car_p, jtora and gma are our readings of published methods, with our energy oracle and our timing.",
        ),
    )


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--play", action="store_true", help="also play plans with real bytes and real work")
    options = parser.parse_args()
    report = measure(options.play)
    return publish(report, "edge", options)
