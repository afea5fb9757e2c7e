"""How often the intervals of `takeup streaming advise` hold: `python -m benchmarks.streaming advice --logs FOLDER`.

Every log is cut into halves. The interval of P(stall) from the first half should hold what the replay of the second
half finds, at the same bitrate in bit/s. The second table has the errors of ways to predict the second half: replay of
the first, the same with the mean rate of the second half given, the fitted chain (no goal, no segments), a constant
rate. Files below FOLDER are grouped by the folder that they lie in.

With `--sabre FILE` (sabre.py of UMass-LIDS/sabre) the first twenty logs are also played by Sabre, at one bitrate, with
three buffer goals: its seconds in stalls and its number of stalls stand beside the replay's.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.support.dated import options_of, publish, versions
from takeup.core.report import Check, Column, Report, Table
from takeup.errors import BadInput
from takeup.streaming.advice.qoe import solve_cell
from takeup.streaming.capacity_fit import fit_capacity
from takeup.streaming.model import Cell, Player, Views
from takeup.streaming.simulate.replay import SteadyLog, replay_intervals
from takeup.streaming.traces import ThroughputLog, read_log

SHORTEST_S = 300.0
MEAN_S, SEGMENT_S, GOAL_S = 60.0, 2.0, 30.0
SPEEDS, STARTS_S = (1.2, 2.0), (2.0, 4.0, 10.0)
LEAST_COVERAGE, MOST_COVERAGE = 0.85, 0.95
NO_DIFFERENCE = 1e-3
WAYS = ("replay of the first half", "its replay at the second mean", "fitted chain", "constant rate")


@dataclass(frozen=True, slots=True)
class Case:
    """One log at one bitrate and threshold: what the second half shows, and what was predicted from the first."""

    group: str
    found: float
    low: float
    high: float
    predicted: tuple[float, ...]

    @property
    def is_held(self) -> bool:
        return self.low - NO_DIFFERENCE <= self.found <= self.high + NO_DIFFERENCE


def halves(log: ThroughputLog) -> tuple[SteadyLog, SteadyLog]:
    """Both halves of a log, second by second."""
    rates = np.concatenate(log.per_second())
    half = len(rates) // 2
    return SteadyLog(np.ones(half), rates[:half]), SteadyLog(np.ones(half), rates[half : 2 * half])


def cases_of(group: str, log: ThroughputLog) -> Iterator[Case]:
    """Every bitrate and threshold of one log; none if a half is practically dead."""
    first, second = halves(log)
    if min(first.mean_bps, second.mean_bps) < 1e4:
        return
    capacity = fit_capacity([first.rates_bps]).capacity
    for speed, start_s in product(SPEEDS, STARTS_S):
        bitrate_bps, player = first.mean_bps / speed, Player(start_s, start_s, GOAL_S, SEGMENT_S)
        interval = replay_intervals(first, player, bitrate_bps, MEAN_S)["stall_probability"]
        scaled = first.outcomes(player, bitrate_bps, MEAN_S, second.mean_bps / first.mean_bps)[:, 0].mean()
        alone = Cell(first.mean_bps, bitrate_bps, 1e-9, 1, (Views(1.0, MEAN_S),), capacity=capacity)
        chain = solve_cell(alone, Player(start_s)).stall_probability.value
        steady = SteadyLog(np.ones(60), np.full(60, first.mean_bps)).outcomes(player, bitrate_bps, MEAN_S)[:, 0].mean()
        found = float(second.outcomes(player, bitrate_bps, MEAN_S)[:, 0].mean())
        predicted = (interval.value, float(scaled), chain, float(steady))
        yield Case(group, found, interval.low, interval.high, predicted)


def collect(folder: Path) -> list[Case]:
    """All cases of all logs that are long enough."""
    cases = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        try:
            log = read_log(path)
        except BadInput:
            continue  # a manifest or a note among the logs
        if log.duration_s >= SHORTEST_S:
            cases += list(cases_of(path.parent.name, log))
    return cases


def coverage_table(cases: Sequence[Case]) -> Table:
    """How often the interval holds, and its mean width, by collection."""
    rows = []
    for group in [*sorted({case.group for case in cases}), "all"]:
        some = [case for case in cases if group in {case.group, "all"}]
        width = float(np.mean([case.high - case.low for case in some]))
        rows.append((group, len(some), 100 * float(np.mean([case.is_held for case in some])), width))
    columns = (Column("logs in"), Column("cases"), Column("held", "%", 1), Column("mean width", digits=3))
    return Table("90 % intervals from the first half that hold the second", columns, tuple(rows))


def error_table(cases: Sequence[Case]) -> Table:
    """Mean absolute difference of P(stall) to the second half, by collection and way."""
    groups = sorted({case.group for case in cases})
    rows: list[tuple[str | float, ...]] = []
    for place, way in enumerate(WAYS):
        errors = {group: [abs(c.predicted[place] - c.found) for c in cases if c.group == group] for group in groups}
        everything = [error for some in errors.values() for error in some]
        means = [float(np.mean(errors[group])) for group in groups]
        rows.append((way, *means, float(np.mean(everything))))
    columns = (Column("prediction"), *(Column(group, digits=4) for group in [*groups, "all"]))
    return Table("Mean absolute error of P(stall) of the second half", columns, tuple(rows))


# Sabre: the same session, one bitrate and no latency ------------------------------------------------------------------

SABRE_SEGMENT_S, SABRE_VIDEO_S, SABRE_GOALS_S, SABRE_LOGS = 3.0, 600.0, (10.0, 22.0, 50.0), 20
SABRE_ERROR, SABRE_LEAST_S = 0.1, 0.5  # relative, of seconds in stalls above the second


def sabre_table(program: Path, folder: Path) -> Table:
    """Seconds in stalls and stalls, by Sabre and by the replay, from the beginning of every log."""
    rows = []
    with tempfile.TemporaryDirectory() as work:
        for path in _sabre_logs(folder):
            log = read_log(path)
            kbps = max(1, round(log.mean_bps / 1.3e3))
            for goal_s in SABRE_GOALS_S:
                player = Player(SABRE_SEGMENT_S, SABRE_SEGMENT_S, goal_s, SABRE_SEGMENT_S)
                ours = SteadyLog(log.durations_s, log.rates_bps).outcomes(
                    player, kbps * 1e3, 1e12, length_s=SABRE_VIDEO_S
                )[0]
                theirs = _sabre(program, Path(work), log, kbps, goal_s + SABRE_SEGMENT_S)
                rows.append((path.name, goal_s, theirs[0], float(ours[2]), theirs[1], float(ours[1])))
    columns = (
        Column("log"),
        Column("goal", "s", 0),
        Column("Sabre", "s in stalls", 2),
        Column("replay", "s in stalls", 2),
    )
    return Table("Replay and Sabre", (*columns, Column("stalls, Sabre"), Column("stalls, replay")), tuple(rows))


def _sabre_logs(folder: Path) -> list[Path]:
    found = [path for path in sorted(folder.rglob("*.json")) if "bandwidth_kbps" in path.read_text()[:2000]]
    groups = [[path for path in found if path.parent == parent] for parent in sorted({path.parent for path in found})]
    return [path for group in groups for path in group[: SABRE_LOGS // len(groups)]]


def _sabre(program: Path, work: Path, log: ThroughputLog, kbps: int, buffer_s: float) -> tuple[float, float]:
    samples = [
        {"duration_ms": 1e3 * seconds, "bandwidth_kbps": rate / 1e3, "latency_ms": 0}
        for seconds, rate in zip(log.durations_s.tolist(), log.rates_bps.tolist(), strict=True)
    ]
    sizes = [[kbps * 1000 * SABRE_SEGMENT_S]] * round(SABRE_VIDEO_S / SABRE_SEGMENT_S)
    movie = {"segment_duration_ms": 1e3 * SABRE_SEGMENT_S, "bitrates_kbps": [kbps], "segment_sizes_bits": sizes}
    (work / "network.json").write_text(json.dumps(samples))
    (work / "movie.json").write_text(json.dumps(movie))
    options = ["-n", "network.json", "-m", "movie.json", "-a", "throughput", "-noa", "-b", str(buffer_s)]
    said = subprocess.run([sys.executable, program.resolve(), *options], cwd=work, capture_output=True, check=True)
    lines = dict(line.rsplit(": ", 1) for line in said.stdout.decode().splitlines() if ": " in line)
    return float(lines["total rebuffer"]), float(lines["total rebuffer events"])


def sabre_check(table: Table) -> Check:
    """The largest relative difference of seconds in stalls."""
    pairs = [(float(str(row[2])), float(str(row[3]))) for row in table.rows]
    worst = max(abs(ours - theirs) / max(theirs, SABRE_LEAST_S) for theirs, ours in pairs)
    return Check.at_most("largest difference to Sabre, of the seconds in stalls", worst, SABRE_ERROR)


def measure(folder: Path, sabre: Path | None) -> Report:
    """Coverage and errors over all logs of a folder."""
    cases = collect(folder)
    peers = () if sabre is None else (sabre_table(sabre, folder),)
    held = float(np.mean([case.is_held for case in cases]))
    checks = (
        Check.at_least("share of second halves in the interval", held, LEAST_COVERAGE),
        Check.at_most("the same, which should not be certain", held, MOST_COVERAGE),
        *(sabre_check(table) for table in peers),
    )
    note = f"Versions: {versions(('takeup', 'numpy', 'numba'))}. Videos of {MEAN_S:g} s, segments of {SEGMENT_S:g} s, "
    return Report(
        title="Streaming: intervals of advice and errors of predictions on second halves",
        domain="streaming",
        scenario={"command": "python -m benchmarks.streaming advice --logs FOLDER --sabre FILE"},
        seed=0,
        tables=(coverage_table(cases), error_table(cases), *peers),
        checks=checks,
        notes=(note + f"goal {GOAL_S:g} s, bitrates at 1/{SPEEDS[0]:g} and 1/{SPEEDS[1]:g} of the first half's mean.",),
    )


def main() -> int:
    parser: argparse.ArgumentParser = options_of(__doc__)
    parser.add_argument("--logs", type=Path, metavar="FOLDER", required=True, help="folders of throughput logs")
    parser.add_argument("--sabre", type=Path, metavar="FILE", help="sabre.py, to play the same logs with")
    options = parser.parse_args()
    return publish(measure(options.logs, options.sabre), "streaming-advice", options)
