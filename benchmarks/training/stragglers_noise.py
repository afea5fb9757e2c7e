"""The part `noise` of benchmarks/training/stragglers.py: change points under noise of many kinds, against peers.

Each stream has slow periods of 15 to 150 %, a quarter of which begin with a ramp, and a hundredth of its points is
missing. An alarm is right if it is declared from 5 iterations before to 25
after a change, in its direction. Ours sees the streams with its defaults; peers with defaults and at least the ratio
of a tenth. PELT has hindsight, so its place counts. Seeds from 1000 up were not used for development.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.peers import change_points as peers
from takeup.core.arrays import Floats, Ints
from takeup.core.report import Cell, Check, Column, Table
from takeup.training.stragglers.detect.change_points import ChangePointDetector
from takeup.training.stragglers.detect.detector import Covariates

Alarm = tuple[int, bool]
NUM_POINTS, NUM_STREAMS, HELD_OUT = 1500, 60, 1000
FEWER = {"ADWIN": 20, "PELT, offline": 8}  # streams for slow peers
EARLY, LATE = 5, 25
CORRELATED_BAR, LENGTHS_BAR, UNSEEN_BAR = 0.93, 0.9, 0.8
STAY, SPREAD = 0.8, 0.04


class NoisyStream(NamedTuple):
    """Times, the amounts of work if they can be seen, the iteration of each point, and the changes."""

    times_s: Floats
    work: Floats | None
    places: Ints
    truth: list[Alarm]


def white(spread: float) -> Callable[[np.random.Generator], Floats]:
    """Log-normal noise."""
    return lambda random: spread * random.standard_normal(NUM_POINTS)


def correlated(random: np.random.Generator) -> Floats:
    """An autoregressive process of first order, started in its stationary state."""
    values = random.standard_normal(NUM_POINTS) * SPREAD
    for place in range(1, NUM_POINTS):
        values[place] = STAY * values[place - 1] + np.sqrt(1 - STAY**2) * values[place]
    return values


def heavy(random: np.random.Generator) -> Floats:
    """One point in twenty is late by a Pareto draw."""
    late = np.where(random.random(NUM_POINTS) < 0.05, np.log1p(0.1 * random.pareto(1.5, NUM_POINTS)), 0.0)
    return 0.02 * random.standard_normal(NUM_POINTS) + late


def drifting(random: np.random.Generator) -> Floats:
    """A slow drift and a slow sine."""
    at = np.arange(NUM_POINTS) / NUM_POINTS
    wave = 0.02 * np.sin(2 * np.pi * (3 * at + random.random()))
    noise: Floats = 0.02 * random.standard_normal(NUM_POINTS) + random.choice([-0.05, 0.05]) * at + wave
    return noise


def spiky(random: np.random.Generator) -> Floats:
    """An iteration in eight takes up to twice as long."""
    spikes = np.where(random.random(NUM_POINTS) < 0.12, random.uniform(0.1, 0.7, NUM_POINTS), 0.0)
    return 0.02 * random.standard_normal(NUM_POINTS) + spikes


KINDS: dict[str, Callable[[np.random.Generator], Floats]] = {
    "white, 1 %": white(0.01),
    "white, 3 %": white(0.03),
    "white, 8 %": white(0.08),
    "heavy tails": heavy,
    "AR(1), phi 0.8, 4 %": correlated,
    "drift and sine": drifting,
    "spikes, 12 %": spiky,
    "variable lengths, seen": white(0.02),
    "variable lengths, unseen": white(0.02),
}


def draw(kind: str, seed: int) -> NoisyStream:
    """One stream."""
    random = np.random.default_rng([seed, list(KINDS).index(kind.replace("unseen", "seen"))])
    levels, truth = _levels(random)
    logs = levels + KINDS[kind](random)
    work = np.exp(0.18 * random.standard_normal(NUM_POINTS)) if "lengths" in kind else None
    times_s = np.exp(logs) * (1.0 if work is None else work)
    kept = np.flatnonzero(random.random(NUM_POINTS) >= 0.01)
    return NoisyStream(times_s[kept], work[kept] if work is not None and "unseen" not in kind else None, kept, truth)


def _levels(random: np.random.Generator) -> tuple[Floats, list[Alarm]]:
    levels, truth, place = np.zeros(NUM_POINTS), list[Alarm](), 0
    for _ in range(3):
        start = place + int(random.integers(80, 200))
        end = start + int(random.integers(80, 250))
        if end + 60 > NUM_POINTS:
            break
        height = np.log(random.uniform(1.15, 2.5))
        levels[start:end] = height
        if random.random() < 0.25:
            num = int(random.integers(4, 16))
            levels[start : start + num] = height * np.arange(1, num + 1) / num
        truth += [(start, True), (end, False)]
        place = end
    return levels, truth


# Detectors ------------------------------------------------------------------------------------------------------------


def ours(stream: NoisyStream) -> list[Alarm]:
    """Ours, with the amounts of work as covariates where they can be seen."""
    detector, covariates, found, places = ChangePointDetector(), Covariates(), list[Alarm](), list[int]()
    for number, time_s in enumerate(stream.times_s.tolist()):
        work = () if stream.work is None else (float(stream.work[number]),)
        point_s = covariates.as_usual_s(time_s, None, work) if work else time_s
        if point_s is not None:
            places.append(number)
            found += [(places[each.declared], each.is_onset) for each in detector.see_one(point_s)]
    return found


def cusum(stream: NoisyStream) -> list[Alarm]:
    """Both ways on logarithms, from the median and the noise of the latest thirty points of the segment."""
    logs, found, began, up, down = np.log(stream.times_s), list[Alarm](), 0, 0.0, 0.0
    noise = max(0.005, float(1.048 * np.median(np.abs(np.diff(logs)))))
    for now in range(len(logs)):
        if now - began < 20:
            continue
        level = float(np.median(logs[began : began + 20]))
        off = logs[now] - level
        up, down = max(0.0, up + off - 0.05), max(0.0, down - off - 0.05)
        if max(up, down) > max(0.5, 6 * noise):
            found.append((now, up > down))
            began, up, down = now, 0.0, 0.0
    return found


def peer(alarms: Callable[..., list[Alarm]]) -> Callable[[NoisyStream], list[Alarm]]:
    """A peer with its defaults, that verifies changes of a tenth."""
    return lambda stream: alarms(stream.times_s, least_ratio=0.1)


DETECTORS: dict[str, Callable[[NoisyStream], list[Alarm]]] = {
    "ours": ours,
    "CUSUM": cusum,
    "ADWIN": peer(peers.adwin),
    "PELT, offline": peer(peers.pelt),
}


def counts(found: Sequence[Alarm], stream: NoisyStream) -> tuple[int, int, int]:
    """Changes found, false alarms, and changes missed; the rungs of a ramp may be told one by one."""
    left, num_false = list(stream.truth), 0
    for point, is_onset in found:
        at = int(stream.places[min(point, len(stream.places) - 1)])
        near = [each for each in stream.truth if each[1] == is_onset and -EARLY <= at - each[0] <= LATE]
        num_false += not near
        left = [each for each in left if each not in near]
    return len(stream.truth) - len(left), num_false, len(left)


def scores(detector: Callable[[NoisyStream], list[Alarm]], kind: str, seeds: Sequence[int]) -> tuple[float, ...]:
    """Precision, recall and F1."""
    streams = [draw(kind, seed) for seed in seeds]
    right, false, missed = np.sum([counts(detector(each), each) for each in streams], axis=0)
    precision, recall = right / max(1, right + false), right / max(1, right + missed)
    return float(precision), float(recall), float(2 * precision * recall / max(1e-9, precision + recall))


def noise(tick: Callable[[], object], options: Namespace) -> tuple[list[Table], list[Check]]:
    """All detectors on all kinds of noise."""
    seeds, rows, own = range(HELD_OUT, HELD_OUT + NUM_STREAMS), list[tuple[Cell, ...]](), dict[str, float]()
    known = [
        name
        for name in DETECTORS
        if name.partition(",")[0] not in peers.PEERS or peers.is_installed(name.partition(",")[0])
    ]
    for kind in KINDS:
        found = {name: scores(DETECTORS[name], kind, seeds[: FEWER.get(name)]) for name in known}
        rows.append((kind, *found["ours"], *(found[name][2] for name in known[1:])))
        own[kind] = found["ours"][2]
        tick()
    columns = [Column("noise"), *(Column(name, digits=3) for name in ("precision", "recall", "F1"))]
    columns += [Column(f"F1 of {name}", digits=3) for name in known[1:]]
    note = f"{NUM_STREAMS} held-out streams of {NUM_POINTS} iterations a row; fewer: {FEWER}"
    return [Table("Changes under noise", tuple(columns), tuple(rows), note)], [
        Check.at_least("F1, autocorrelated noise", own["AR(1), phi 0.8, 4 %"], CORRELATED_BAR),
        Check.at_least("F1, variable lengths that are seen", own["variable lengths, seen"], LENGTHS_BAR),
        Check.at_least("F1, variable lengths that are not seen", own["variable lengths, unseen"], UNSEEN_BAR),
    ]
