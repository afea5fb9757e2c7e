"""How well a capacity fitted to real throughput predicts stalls, beside a cell that the log itself drives.

Every folder of logs is one kind of link. The fitted model is solved exactly and compared with a simulation of the whole
cell on the log, at two loads and three start thresholds: on the measurements it was fitted to, and on those it was not
(files sorted by name, even ones against odd ones, the mean taken from the test). Samples last as long as they say,
unless one of a folder lasts longer than any sample should: then the durations hold gaps of the recording, and every
sample counts as one second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.report import Check, Column, Table
from takeup.streaming.advice.qoe import solve_cell
from takeup.streaming.capacity_fit import fit_capacity
from takeup.streaming.model import Capacity, CapacityFit, Cell, Player
from takeup.streaming.simulate.cell import simulate_log
from takeup.streaming.traces import read_logs

LOADS, THRESHOLDS_S = (0.7, 0.9), (5.0, 10.0, 20.0)
SPEED, MAX_USERS, MEAN_VIDEO_S = 7.5, 10, 60.0
NUM_VIDEOS = 300_000
LONGEST_SAMPLE_S = 60.0
ITSELF, EVEN, ODD = "itself", "even, tested on odd", "odd, tested on even"
IN_SAMPLE_BARS, OUT_OF_SAMPLE_BAR = (0.06, 0.16), 0.11

COLUMNS = (
    Column("link"),
    Column("fitted on"),
    Column("load", digits=1),
    Column("threshold", "s", 0),
    Column("trace-driven", digits=4),
    Column("±", digits=4),
    Column("fitted", digits=4),
    Column("error", "%", 1),
    Column("constant capacity", digits=4),
    Column("error", "%", 1),
)


@dataclass(frozen=True, slots=True)
class Row:
    """P(stall) in one setting: simulated on the log, from the fitted model, and from a constant capacity."""

    link: str
    fitted_on: str
    load: float
    threshold_s: float
    truth: float
    truth_error: float
    fitted: float
    constant: float

    @property
    def error(self) -> float:
        return abs(self.fitted / self.truth - 1)

    @property
    def constant_error(self) -> float:
        return abs(self.constant / self.truth - 1)

    @property
    def cells(self) -> tuple[str | float, ...]:
        where = (self.link, self.fitted_on, self.load, self.threshold_s, self.truth, self.truth_error)
        return (*where, self.fitted, 100 * self.error, self.constant, 100 * self.constant_error)


def measure_logs(folder: Path, seed: int) -> tuple[list[Table], list[Check]]:
    """Both accuracies over all sub-folders that hold JSON logs, and a table of the links themselves."""
    links = {path.name: _pieces(path) for path in sorted({file.parent for file in folder.rglob("*.json")})}
    rows, facts = [], []
    for name, (pieces, samples) in links.items():
        fit = fit_capacity(pieces)
        facts.append(_facts(name, pieces, samples, fit))
        rows += _rows((name, ITSELF), pieces, fit.capacity, seed)
        even, odd = pieces[::2], pieces[1::2]
        rows += _rows((name, EVEN), odd, fit_capacity(even).capacity, seed)
        rows += _rows((name, ODD), even, fit_capacity(odd).capacity, seed)
    note = f"{MAX_USERS} users, videos of {MEAN_VIDEO_S:g} s, a mean capacity of {SPEED} bitrates, {NUM_VIDEOS} videos"
    accuracy = Table("P(stall) on real throughput", COLUMNS, tuple(row.cells for row in rows), note)
    return [_links_table(facts), accuracy], _checks(rows)


def _pieces(folder: Path) -> tuple[list[Floats], str]:
    """The mean rate of every second, one array for each file in order of names, and how samples were counted."""
    log = read_logs(sorted(folder.glob("*.json")), folder.name)
    if log.durations_s.max() <= LONGEST_SAMPLE_S:
        return log.per_second(), "as long as they say"
    even = replace(log, durations_s=np.ones(len(log.durations_s)))
    return even.per_second(), f"one second each (they say up to {log.durations_s.max():.0f} s)"


def _rows(name: tuple[str, str], pieces: Sequence[Floats], capacity: Capacity, seed: int) -> list[Row]:
    seconds = np.concatenate(list(pieces))
    mean_bps = float(seconds.mean())
    rows = []
    for load, threshold_s in product(LOADS, THRESHOLDS_S):
        player = Player(threshold_s)
        cell = Cell(mean_bps, mean_bps / SPEED, load * SPEED / MEAN_VIDEO_S, MAX_USERS)
        driven = simulate_log(cell, player, np.ones(len(seconds)), seconds, num_videos=NUM_VIDEOS, seed=seed)
        fitted, constant = solve_cell(replace(cell, capacity=capacity), player), solve_cell(cell, player)
        truth = driven.stall_probability
        answers = fitted.stall_probability.value, constant.stall_probability.value
        rows.append(Row(*name, load, threshold_s, truth.value, truth.error, *answers))
    return rows


def _facts(name: str, pieces: Sequence[Floats], samples: str, fit: CapacityFit) -> tuple[str | float, ...]:
    seconds = sum(len(piece) for piece in pieces)
    return name, len(pieces), seconds, samples, fit.mean_bps / 1e6, fit.num_slow, fit.num_fast, fit.window_s


def _links_table(facts: list[tuple[str | float, ...]]) -> Table:
    columns = (
        Column("link"),
        Column("files", digits=0),
        Column("length", "s", 0),
        Column("samples last"),
        Column("mean", "Mbit/s", 2),
        Column("slow states", digits=0),
        Column("fast states", digits=0),
        Column("average", "s", 0),
    )
    return Table("Logs and what was fitted to all of each", columns, tuple(facts))


def _checks(rows: list[Row]) -> list[Check]:
    inside = [row for row in rows if row.fitted_on == ITSELF]
    outside = [row for row in rows if row.fitted_on != ITSELF]
    constant = float(np.mean([row.constant_error for row in rows]))
    mean_bar, most_bar = IN_SAMPLE_BARS
    return [
        Check.at_most(
            "P(stall) on real links, mean error",
            float(np.mean([row.error for row in inside])),
            mean_bar,
            why=f"a constant capacity is off by {constant:.0%} on average",
        ),
        Check.at_most("P(stall) on real links, largest error", max(row.error for row in inside), most_bar),
        Check.at_most(
            "the same on links not fitted to, mean error",
            float(np.mean([row.error for row in outside])),
            OUT_OF_SAMPLE_BAR,
            why=f"replaying the files fitted to, without any model, is off by {_replay_error(rows):.1%} on average",
        ),
    ]


def _replay_error(rows: list[Row]) -> float:
    """How far the two halves of the files are from each other: what no model of one half can know of the other."""
    even, odd = ([row.truth for row in rows if row.fitted_on == half] for half in (ODD, EVEN))
    errors = [abs(a / b - 1) for pair in zip(even, odd, strict=True) for a, b in (pair, pair[::-1])]
    return float(np.mean(errors))
