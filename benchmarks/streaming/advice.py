"""How often the intervals of `takeup streaming advise` hold: `python -m benchmarks.streaming advice --logs FOLDER`.

Every log is cut into halves. The interval of P(stall) from the first half should hold what the replay of the second
half finds, at the same bitrate in bit/s. Further tables have the errors of ways to predict the first half itself and
the second one: replay of the first half, the same with the mean rate of the second half given, the equations with the
fitted chain and the goal (no segments), replays of a block bootstrap and of a hidden Markov model with five states, and
a constant rate. Files below FOLDER are grouped by the folder that they lie in.

With `--sabre FILE` (sabre.py of UMass-LIDS/sabre) twenty logs are also played by Sabre: at one bitrate, and on a ladder
of ten with its rules 'throughput' and 'bola', each with three buffer goals.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.support.dated import options_of, publish, versions
from takeup.core.arrays import Floats
from takeup.core.compiled import kernel
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
WAYS = (
    "replay of the first half",
    "its replay at the second mean",
    "fitted chain",
    "block bootstrap",
    "HMM",
    "constant",
)
BLOCK_S, NUM_STATES, NUM_ROUNDS, SYNTHETIC_S = 60, 5, 20, 6000


@dataclass(frozen=True, slots=True)
class Case:
    """One log at one bitrate and threshold: what the second half shows, and what was predicted from the first."""

    group: str
    found: float
    low: float
    high: float
    predicted: tuple[float, ...]

    def error(self, place: int, half: str) -> float:
        """How far a way is from what a half shows."""
        return abs(self.predicted[place] - (self.found if half == "second" else self.predicted[0]))

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
    resampled, hidden = block_bootstrap(first.rates_bps), hidden_markov(first.rates_bps)
    for speed, start_s in product(SPEEDS, STARTS_S):
        bitrate_bps, player = first.mean_bps / speed, Player(start_s, start_s, GOAL_S, SEGMENT_S)
        interval = replay_intervals(first, player, bitrate_bps, MEAN_S)["stall_probability"]
        scaled = first.outcomes(player, bitrate_bps, MEAN_S, second.mean_bps / first.mean_bps)[:, 0].mean()
        alone = Cell(first.mean_bps, bitrate_bps, 1e-9, 1, (Views(1.0, MEAN_S),), capacity=capacity)
        chain = solve_cell(alone, Player(start_s, start_s, GOAL_S)).stall_probability.value
        steady = SteadyLog(np.ones(60), np.full(60, first.mean_bps))
        others = (float(log.outcomes(player, bitrate_bps, MEAN_S)[:, 0].mean()) for log in (resampled, hidden, steady))
        found = float(second.outcomes(player, bitrate_bps, MEAN_S)[:, 0].mean())
        predicted = (interval.value, float(scaled), chain, *others)
        yield Case(group, found, interval.low, interval.high, predicted)


def block_bootstrap(rates: Floats) -> SteadyLog:
    """Blocks of a minute in random order, as many as make a long log."""
    begins = np.random.default_rng(0).integers(0, len(rates), SYNTHETIC_S // BLOCK_S)
    places = (begins[:, None] + np.arange(BLOCK_S)).ravel() % len(rates)
    return SteadyLog(np.ones(len(places)), rates[places])


def hidden_markov(rates: Floats) -> SteadyLog:
    """A long log from a hidden Markov model with lognormal states, fitted by the algorithm of Baum and Welch."""
    values = np.log(np.maximum(rates, 1e-3 * rates.mean()))
    means = np.quantile(values, (np.arange(NUM_STATES) + 0.5) / NUM_STATES)
    sds = np.full(NUM_STATES, max(float(values.std()) / 2, 0.05))
    steps = np.full((NUM_STATES, NUM_STATES), 0.1 / (NUM_STATES - 1)) + np.eye(NUM_STATES) * (0.9 - 0.1 / 4)
    for _ in range(NUM_ROUNDS):
        shares, counts = _posterior(values, means, sds, steps)
        weights = shares / np.maximum(shares.sum(axis=0), 1e-9)
        means = values @ weights
        sds = np.sqrt(np.maximum(((values[:, None] - means) ** 2 * weights).sum(axis=0), 0.05**2))
        counts = counts + shares.mean(axis=0)  # else the state in which a log ends may be the last one for ever
        steps = counts / counts.sum(axis=1, keepdims=True)
    chance, state, drawn = np.random.default_rng(0), 0, np.empty(SYNTHETIC_S)
    for second in range(SYNTHETIC_S):
        state = int(chance.choice(NUM_STATES, p=steps[state]))
        drawn[second] = math.exp(means[state] + sds[state] * chance.standard_normal())
    return SteadyLog(np.ones(SYNTHETIC_S), drawn)


@kernel
def _posterior(values: Floats, means: Floats, sds: Floats, steps: Floats) -> tuple[Floats, Floats]:
    """The probability of every state in every second, and the expected number of steps between states."""
    num, size = len(values), len(means)
    likely, forward, backward = np.empty((num, size)), np.empty((num, size)), np.ones((num, size))
    for t in range(num):
        likely[t] = np.exp(-0.5 * ((values[t] - means) / sds) ** 2) / sds + 1e-300
        forward[t] = likely[t] * (forward[t - 1] @ steps if t else np.full(size, 1.0 / size))
        forward[t] /= forward[t].sum()
    counts = np.zeros((size, size))
    for t in range(num - 2, -1, -1):
        ahead = likely[t + 1] * backward[t + 1]
        backward[t] = steps @ ahead
        backward[t] /= backward[t].sum()
        pairs = forward[t].reshape(-1, 1) * steps * ahead
        counts += pairs / pairs.sum()
    shares = forward * backward
    return shares / shares.sum(axis=1).reshape(-1, 1), counts


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


def error_table(cases: Sequence[Case], half: str) -> Table:
    """Mean absolute difference of P(stall) to what a half shows, by collection and way."""
    groups = sorted({case.group for case in cases})
    rows: list[tuple[str | float, ...]] = []
    for place, way in enumerate(WAYS):
        if half == "first" and place == 1:
            continue
        errors = {group: [case.error(place, half) for case in cases if case.group == group] for group in groups}
        everything = [error for some in errors.values() for error in some]
        means = [float(np.mean(errors[group])) for group in groups]
        rows.append((way, *means, float(np.mean(everything))))
    columns = (Column("prediction"), *(Column(group, digits=4) for group in [*groups, "all"]))
    note = "predictions from the first half" + ("; its replay is what it shows" if half == "first" else "")
    return Table(f"Mean absolute error of P(stall) of the {half} half", columns, tuple(rows), note)


# Sabre: the same session, no latency ----------------------------------------------------------------------------------

SABRE_SEGMENT_S, SABRE_VIDEO_S, SABRE_GOALS_S, SABRE_LOGS = 3.0, 600.0, (10.0, 22.0, 50.0), 20
SABRE_ERROR, SABRE_LEAST_S = 0.1, 0.5  # relative, of seconds in stalls above half a second
LADDER_KBPS = (230, 331, 477, 688, 991, 1427, 2056, 2962, 5027, 6000)
SABRE_RULES = {
    "one bitrate": ("-a", "throughput", "-noa"),
    "throughput": ("-a", "throughput", "-noibr", "-noa"),
    "bola": ("-a", "bola", "-ab", "-noa"),
}


def sabre_table(program: Path, folder: Path) -> Table:
    """Seconds in stalls, stalls and mean bitrate, by Sabre and by the replay, from the beginning of every log."""
    rows: list[tuple[str | float, ...]] = []
    with tempfile.TemporaryDirectory() as work:
        for path in sample_of_logs(folder):
            log = read_log(path)
            for rule, goal_s in product(SABRE_RULES, SABRE_GOALS_S):
                one = rule == "one bitrate"
                rungs = (max(1, round(log.mean_bps / 1.3e3)),) if one else LADDER_KBPS
                player = Player(
                    SABRE_SEGMENT_S, SABRE_SEGMENT_S, goal_s, SABRE_SEGMENT_S, "throughput" if one else rule
                )
                ours = SteadyLog(log.durations_s, log.rates_bps).outcomes(
                    player, [1e3 * rung for rung in rungs], 1e12, length_s=SABRE_VIDEO_S
                )[0]
                theirs = _sabre(program, Path(work), log, rungs, (rule, goal_s + SABRE_SEGMENT_S))
                mine = (float(ours[2]), float(ours[1]), float(ours[4]) / 1e3)
                rows.append((path.name, rule, goal_s, *(n for pair in zip(theirs, mine, strict=True) for n in pair)))
    pairs = (
        Column(f"{what}, {who}", digits=2)
        for what in ("s in stalls", "stalls", "kbit/s")
        for who in ("Sabre", "replay")
    )
    return Table("Replay and Sabre", (Column("log"), Column("rule"), Column("goal", "s", 0), *pairs), tuple(rows))


def sample_of_logs(folder: Path, num: int = SABRE_LOGS) -> list[Path]:
    """The first logs of every folder, equally many of each."""
    found = [path for path in sorted(folder.rglob("*.json")) if "bandwidth_kbps" in path.read_text()[:2000]]
    groups = [[path for path in found if path.parent == parent] for parent in sorted({path.parent for path in found})]
    return [path for group in groups for path in group[: -(-num // len(groups))]][:num]


def _sabre(
    program: Path, work: Path, log: ThroughputLog, rungs_kbps: Sequence[int], played: tuple[str, float]
) -> tuple[float, float, float]:
    samples = [
        {"duration_ms": 1e3 * seconds, "bandwidth_kbps": rate / 1e3, "latency_ms": 0}
        for seconds, rate in zip(log.durations_s.tolist(), log.rates_bps.tolist(), strict=True)
    ]
    num = round(SABRE_VIDEO_S / SABRE_SEGMENT_S)
    sizes = [[rung * 1000 * SABRE_SEGMENT_S for rung in rungs_kbps]] * num
    movie = {"segment_duration_ms": 1e3 * SABRE_SEGMENT_S, "bitrates_kbps": rungs_kbps, "segment_sizes_bits": sizes}
    (work / "network.json").write_text(json.dumps(samples))
    (work / "movie.json").write_text(json.dumps(movie))
    options = ["-n", "network.json", "-m", "movie.json", "-b", str(played[1]), *SABRE_RULES[played[0]]]
    said = subprocess.run([sys.executable, program.resolve(), *options], cwd=work, capture_output=True, check=True)
    lines = dict(line.rsplit(": ", 1) for line in said.stdout.decode().splitlines() if ": " in line)
    names = ("total rebuffer", "total rebuffer events", "total played bitrate")
    seconds, stalls, kbps = (float(lines[name]) for name in names)
    return seconds, stalls, kbps / num


def sabre_check(table: Table) -> Check:
    """The largest relative difference of seconds in stalls."""
    pairs = [(float(str(row[3])), float(str(row[4]))) for row in table.rows]
    worst = max(abs(ours - theirs) / max(theirs, SABRE_LEAST_S) for theirs, ours in pairs)
    return Check.at_most("largest difference to Sabre, of the seconds in stalls", worst, SABRE_ERROR)


def coverage_checks(cases: Sequence[Case]) -> list[Check]:
    """Whether the intervals hold as often as they say, in every collection and in all."""
    checks = []
    for group in [*sorted({case.group for case in cases}), "all"]:
        held = float(np.mean([case.is_held for case in cases if group in {case.group, "all"}]))
        checks.append(Check.at_least(f"share of second halves in the interval, {group}", held, LEAST_COVERAGE))
        checks.append(Check.at_most(f"the same, which should not be certain, {group}", held, MOST_COVERAGE))
    return checks


def measure(folder: Path, sabre: Path | None) -> Report:
    """Coverage and errors over all logs of a folder."""
    cases = collect(folder)
    peers = () if sabre is None else (sabre_table(sabre, folder),)
    checks = (*coverage_checks(cases), *(sabre_check(table) for table in peers))
    note = f"Versions: {versions(('takeup', 'numpy', 'numba'))}. Videos of {MEAN_S:g} s, segments of {SEGMENT_S:g} s, "
    return Report(
        title="Streaming: intervals of advice and errors of predictions on second halves",
        domain="streaming",
        scenario={"command": "python -m benchmarks.streaming advice --logs FOLDER --sabre FILE"},
        seed=0,
        tables=(coverage_table(cases), error_table(cases, "first"), error_table(cases, "second"), *peers),
        checks=checks,
        notes=(note + f"goal {GOAL_S:g} s, bitrates at 1/{SPEEDS[0]:g} and 1/{SPEEDS[1]:g} of the first half's mean.",),
    )


def main() -> int:
    parser: argparse.ArgumentParser = options_of(__doc__)
    parser.add_argument("--logs", type=Path, metavar="FOLDER", required=True, help="folders of throughput logs")
    parser.add_argument("--sabre", type=Path, metavar="FILE", help="sabre.py, to play the same logs with")
    options = parser.parse_args()
    return publish(measure(options.logs, options.sabre), "streaming-advice", options)
