"""The instance library solved: `python -m benchmarks.edge library --count 300 --rows rows.csv [--out FOLDER]`.

Solves cells of the library one after the other, in an order in which every part has all settings, and appends a row for
each to a CSV file; a cell that has a row there is not solved again. Up to 60 devices have 2 s of CPU time, larger cells
10 s, every cell 10 ms as well. The others are `joint`, `gma`, a mixed-integer program over some groups and 16 slots
with 1 s, and its linear relaxation rounded. Then prints the report of all rows. `--publish` writes the best known plans
and bounds of all rows to the library.
"""

from __future__ import annotations

import benchmarks.support.one_thread  # noqa: F401  before numpy

# isort: split
import csv
import multiprocessing
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import csc_array

from benchmarks.support.dated import options_of, publish, versions
from takeup.core.native_output import native_output_to_stderr
from takeup.core.progress import progress
from takeup.core.report import Check, Column, Report, Table
from takeup.edge.model import Instance
from takeup.edge.planning import solve
from takeup.edge.solvers.partial_plan import PartialPlan, SiteQuantities
from takeup.edge.traces.library import NUM_CELLS, RESULTS, SEED, BestKnown, best_known, cell_traits, library_cell
from takeup.edge.validate import violation_of_answer
from takeup.papers.edge.baselines import COMPARED

STRIDE = 7  # prime to the number of cells
SMALL, SMALL_MS, LARGE_MS, QUICK_MS = 60, 2000.0, 10_000.0, 10.0
MOST_PLAIN = 40  # devices up to which `joint` and `gma` are tried with neighbours or modulations
GROUP_SIZES, NUM_SLOTS, MILP_S = (1, 2, 4, 8, 16), 16, 1.0
FIELDS = ("cell", "worth_j", "bound_j", "budget_ms", "cpu_s", "quick_j", "quick_s", "joint", "gma", "milp", "rounded")
OTHERS = ("joint", "gma", "milp", "rounded")
SMALL_BARS, LARGE_BARS = (2.0, 5.0), (5.0, 10.0)  # gaps in percent: mean and largest


# A plain mixed-integer program: some groups of each device, starts at the ends of slots -------------------------------


def candidates(instance: Instance) -> tuple[list[int], list[list[int]]]:
    """The best groups of some sizes for every device."""
    devices, groups = [], []
    for device, gains in enumerate(instance.gain_to_noise):
        for size in (each for each in GROUP_SIZES if each <= instance.num_subcarriers):
            if instance.contiguous:
                sums = np.convolve(np.log(gains), np.ones(size), "valid")
                found = [list(range(at, at + size)) for at in np.argsort(-sums)[:3].tolist()]
            else:
                found = [np.argsort(-gains)[:size].tolist()]
            devices += [device] * len(found)
            groups += found
    return devices, groups


def columns(instance: Instance) -> tuple[np.ndarray, list[list[int]], np.ndarray, np.ndarray, csc_array]:
    """Devices, groups, starts and worth of all columns that save anything, and what they take of each resource."""
    site = SiteQuantities(instance)
    devices, groups = candidates(instance)
    edges_s = np.linspace(0.0, float(instance.deadlines_s.max()), NUM_SLOTS + 1)
    starts_s = np.minimum(edges_s[1:], site.latest_s[devices, None])
    costs_j = site.table(np.array(devices), groups).whole(starts_s).energy_j
    values_j = site.worth_j[devices, None] - costs_j
    rows, slots = np.nonzero((values_j > 0) & (starts_s > edges_s[:-1]))
    chosen = np.array(devices)[rows]
    start_s = starts_s[rows, slots]
    ends_s = (start_s + site.run_s[chosen])[:, None]
    inside = (np.minimum(ends_s, edges_s[1:]) - np.maximum(start_s[:, None], edges_s[:-1])) > 0
    members = np.zeros((len(rows), instance.num_subcarriers))
    for column, row in enumerate(rows.tolist()):
        members[column, groups[row]] = 1.0
    alone = np.eye(instance.num_devices)[chosen]
    takes = csc_array(np.hstack([alone, members, inside / instance.num_cores]).T)
    return chosen, [groups[row] for row in rows.tolist()], start_s, values_j[rows, slots], takes


def plan_of(instance: Instance, order: Iterable[int], found: tuple[Any, ...]) -> float:
    """The worth of the columns taken in this order, as far as they fit; checked by the validator."""
    devices, groups, start_s, _, takes = found
    plan, left = PartialPlan(SiteQuantities(instance)), np.ones(takes.shape[0])
    for column in order:
        need = takes[:, [column]].toarray()[:, 0]
        if (need <= left + 1e-9).all():
            left -= need
            plan.groups[int(devices[column])] = list(groups[column])
            plan.limits_s[int(devices[column])] = float(start_s[column])
    answer = plan.answer("milp", np.ones(instance.num_devices, np.int8))
    assert violation_of_answer(instance, answer) is None
    return answer.worth_j


def programs(instance: Instance) -> dict[str, float]:
    """What the mixed-integer program finds in its time, and what its relaxation gives by rounding."""
    found = columns(instance)
    values_j, takes = found[3], found[4]
    if len(values_j) == 0:
        return {"milp": 0.0, "rounded": 0.0}
    with native_output_to_stderr():
        relaxed = linprog(-values_j, A_ub=takes, b_ub=np.ones(takes.shape[0]), method="highs")
        whole = milp(
            -values_j,
            integrality=1,
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(takes, -np.inf, 1.0),
            options={"time_limit": MILP_S},
        )
    rounded = plan_of(instance, [at for at in np.argsort(-relaxed.x).tolist() if relaxed.x[at] > 1e-6], found)
    chosen = [] if whole.x is None else np.flatnonzero(whole.x > 0.5).tolist()
    return {"milp": plan_of(instance, chosen, found), "rounded": rounded}


def is_small(number: float) -> bool:
    """Whether the cell has so few devices that it gets the shorter budget."""
    return cell_traits(int(number)).num_devices <= SMALL


# The rows -------------------------------------------------------------------------------------------------------------


def row_of(number: int, share: float) -> dict[str, float]:
    """Everything measured for one cell, with this share of the usual budget."""
    instance, traits = library_cell(number), cell_traits(number)
    budget_ms = share * (SMALL_MS if is_small(number) else LARGE_MS)
    row: dict[str, float] = {"cell": number, "budget_ms": budget_ms}
    for kind, limit_ms in (("quick", QUICK_MS), ("long", budget_ms)):
        began_s = time.process_time()
        answer = solve(instance, budget_ms=limit_ms, now=time.process_time)
        used_s = time.process_time() - began_s
        assert violation_of_answer(instance, answer) is None
        if kind == "quick":
            row |= {"quick_j": answer.worth_j, "quick_s": used_s}
        else:
            row |= {"worth_j": answer.worth_j, "bound_j": answer.bound_j or np.inf, "cpu_s": used_s}
    is_plain = traits.contiguous or traits.modulated
    for name in ("joint", "gma"):
        if not is_plain or traits.num_devices <= MOST_PLAIN:
            row[name] = COMPARED[name].allocate(instance).worth_j
    return row | programs(instance)


def solve_rows(path: Path, first: int, count: int, share: float, jobs: int) -> None:
    """Append a row for every cell that has none; each cell is solved by one process."""
    done = {int(row["cell"]) for row in read_rows(path)}
    numbers = [place * STRIDE % NUM_CELLS for place in range(first, first + count)]
    solve(library_cell(0), budget_ms=100.0)  # compiles everything
    solve(library_cell(220), budget_ms=100.0)
    waiting = [(number, share) for number in numbers if number not in done]
    with progress("library", len(waiting)) as tick, multiprocessing.get_context("fork").Pool(jobs) as pool:
        for row in pool.imap_unordered(_row_of, waiting):
            with path.open("a", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, FIELDS, restval="")
                if file.tell() == 0:
                    writer.writeheader()
                writer.writerow(row)
            tick()


def _row_of(asked: tuple[int, float]) -> dict[str, float]:
    return row_of(*asked)


def read_rows(path: Path) -> list[dict[str, float]]:
    """The rows of a file; what was not measured is left out."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]


def gap(row: Mapping[str, float]) -> float:
    """In percent."""
    return 100 * max(0.0, 1 - row["worth_j"] / row["bound_j"]) if row["bound_j"] > 0 else 0.0


def publish_rows(rows: list[dict[str, float]]) -> None:
    """Better plans and bounds take the place of those of the library; all others stay."""
    known = best_known()
    for row in rows:
        best_j = max(row[name] for name in ("worth_j", "quick_j", *OTHERS) if name in row)
        found = BestKnown(best_j, row["bound_j"] * (1 + 1e-8), row["budget_ms"])
        before = known.get(int(row["cell"]), found)
        worth_j, bound_j = max(found.worth_j, before.worth_j), min(found.bound_j, before.bound_j)
        known[int(row["cell"])] = BestKnown(worth_j, bound_j, found.budget_ms)
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("cell", "worth_j", "bound_j", "budget_ms"))
        for number, best in sorted(known.items()):
            writer.writerow((number, f"{best.worth_j:.9g}", f"{best.bound_j:.9g}", int(best.budget_ms)))


# The report -----------------------------------------------------------------------------------------------------------


def setting_of(row: Mapping[str, float]) -> str:
    traits = cell_traits(int(row["cell"]))
    groups, rates = "contiguous" if traits.contiguous else "scattered", "MCS" if traits.modulated else "Shannon"
    size = "20 to 60 devices" if traits.num_devices <= SMALL else "100 and 200 devices"
    return f"{traits.scenario}, {groups}, {rates}, {size}"


def by_setting(rows: list[dict[str, float]]) -> Table:
    """One row for each setting, with its worst cell."""
    parts: dict[str, list[dict[str, float]]] = defaultdict(list)
    for row in rows:
        parts[setting_of(row)].append(row)
    columns_ = ("setting", "cells", "mean gap (%)", "largest gap (%)", "worst cell", "10 ms below (%)", *OTHERS)
    table = []
    for setting, part in sorted(parts.items()):
        worst = max(part, key=gap)
        behind = [100 * (1 - row["quick_j"] / row["worth_j"]) for row in part if row["worth_j"] > 0]
        others = [_behind(part, name) for name in OTHERS]
        table.append(
            (
                setting,
                len(part),
                float(np.mean([gap(row) for row in part])),
                gap(worst),
                f"{int(worst['cell'])}: {cell_traits(int(worst['cell'])).num_cores} cores",
                float(np.mean(behind)),
                *others,
            )
        )
    note = "the last columns say by how many percent other methods are below auto in the mean; a dash: not run"
    return Table("By setting", tuple(Column(name, digits=2) for name in columns_), tuple(table), note)


def _behind(rows: list[dict[str, float]], name: str) -> float | None:
    shares = [100 * (1 - row[name] / row["worth_j"]) for row in rows if name in row and row["worth_j"] > 0]
    return float(np.mean(shares)) if shares else None


def report(rows: list[dict[str, float]], command: str) -> Report:
    """Everything that the rows say."""
    checks: list[Check] = []
    for label, small, bars in (("up to 60", True, SMALL_BARS), ("100 and 200", False, LARGE_BARS)):
        gaps = [gap(row) for row in rows if is_small(row["cell"]) == small]
        if gaps:
            checks.append(Check.at_most(f"{label} devices, mean gap", float(np.mean(gaps)), bars[0], unit="%"))
            checks.append(Check.at_most(f"{label} devices, largest gap", max(gaps), bars[1], unit="%"))
    behind = [100 * (1 - row["quick_j"] / row["worth_j"]) for row in rows if row["worth_j"] > 0]
    checks.append(Check.at_most("10 ms, mean below the long one", float(np.mean(behind)), 5.0, unit="%"))
    losses = sum(row.get(name, 0.0) > row["worth_j"] * (1 + 1e-9) for row in rows for name in OTHERS)
    checks.append(Check.at_most("cells and methods in which another one is better", losses, 0))
    counts = {name: sum(name in row for row in rows) for name in OTHERS}
    notes = (
        f"Command: {command}. Versions: {versions(('takeup', 'numpy', 'scipy', 'numba'))}.",
        f"{len(rows)} of {NUM_CELLS} cells were run, with {_budgets(rows)} of CPU time, and 10 ms.",
        f"Cells with each other method: {counts}; "
        f"joint and gma with neighbours or modulations only up to {MOST_PLAIN} devices.",
    )
    return Report(
        "Edge: the instance library", "edge", {"command": command}, SEED, (by_setting(rows),), (), tuple(checks), notes
    )


def _budgets(rows: list[dict[str, float]]) -> str:
    """The budgets of small and of large cells in words."""
    parts = []
    for label, small in (("up to 60 devices", True), ("above", False)):
        used = sorted({row["budget_ms"] for row in rows if is_small(row["cell"]) == small})
        parts.append(f"{' or '.join(f'{each / 1000:g} s' for each in used) or 'none'} {label}")
    return ", ".join(parts)


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--first", type=int, default=0, help="where to begin in the order of cells")
    parser.add_argument("--count", type=int, default=NUM_CELLS, help="how many cells to solve")
    parser.add_argument("--rows", type=Path, default=Path("library-rows.csv"), help="the file of rows")
    parser.add_argument("--share", type=float, default=1.0, help="share of the usual budgets")
    parser.add_argument("--publish", action="store_true", help="write the results of the library")
    parser.add_argument("--jobs", type=int, default=1, help="cells that are solved at once")
    options = parser.parse_args()
    solve_rows(options.rows, options.first, options.count, options.share, options.jobs)
    rows = read_rows(options.rows)
    if options.publish:
        publish_rows(rows)
    return publish(report(rows, "python -m benchmarks.edge library"), "edge-library", options)
