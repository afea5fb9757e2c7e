"""The part `situations` of benchmarks/training/stragglers.py: what the watcher says of sixteen kinds of slow jobs.

Eight ranks reduce gradients in four buckets, waiting for each (as with Gloo) or only for the last (as with NCCL); steps
take some 100 ms, noise 2 %, clocks are off. Truth: which ranks are slow or pause, whether a link is, whether all are.
Right: exactly the true ranks are named with the true kind, in an event or in the table at the end, and no other rank
ever. Healthy: runs of 10,000 steps, where every event is false.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.report import Cell, Check, Column, Table
from takeup.training.stragglers.contract import CALL, STEP_GROUP, CallLog, Operation, SlowdownEvent
from takeup.training.stragglers.detect.detector import StragglerDetector

NUM_RANKS, NUM_STEPS, NUM_HEALTHY, STEP_S, CHUNK = 8, 320, 10_000, 0.1, 10
BUCKETS, TRANSFER_S, GROUP = 4, 0.002, 1
SEEDS, HEALTHY_SEEDS = range(1000, 1004), range(1000, 1002)
HEALTHY_BAR = 1.0
Draw = np.random.Generator


@dataclass(slots=True)
class Course:
    """By step and rank: factor of the own work and seconds of pauses; by step: factor of the transfers."""

    factors: Floats
    pauses_s: Floats
    transfers: Floats
    compute: frozenset[int] = frozenset()
    pausing: frozenset[int] = frozenset()
    has_slow_link: bool = False
    are_all: bool = False  # all ranks are slower, or stop, together
    work: Floats | None = None

    @classmethod
    def healthy(cls, random: Draw, num_steps: int = NUM_STEPS) -> Course:
        """Nothing but noise of 2 %."""
        shape = num_steps, NUM_RANKS
        return cls(np.exp(0.02 * random.standard_normal(shape)), np.zeros(shape), np.ones(num_steps))


def slowed(course: Course, ranks: range | tuple[int, ...], factor: float, since: int, until: int = NUM_STEPS) -> Course:
    """The same with slow ranks."""
    course.factors[since:until, list(ranks)] *= factor
    course.compute |= frozenset(ranks)
    return course


def one_slow(random: Draw) -> Course:
    return slowed(Course.healthy(random), (3,), 1.5, 100, 200)


def two_slow(random: Draw) -> Course:
    return slowed(Course.healthy(random), (2, 6), 1.5, 100)


def half_slow(random: Draw) -> Course:
    return slowed(Course.healthy(random), range(4), 1.5, 100)


def all_slow(random: Draw) -> Course:
    course = slowed(Course.healthy(random), range(NUM_RANKS), 1.5, 100)
    course.compute, course.are_all = frozenset(), True
    return course


def slow_from_start(random: Draw) -> Course:
    return slowed(Course.healthy(random), (3,), 1.5, 0)


def slow_from_eight(random: Draw) -> Course:
    return slowed(Course.healthy(random), (3,), 2.0, 8)


def long_pauses(random: Draw) -> Course:
    course = Course.healthy(random)
    course.pauses_s[::10, 3], course.pausing = 0.5, frozenset({3})
    return course


def short_pauses(random: Draw) -> Course:
    course = Course.healthy(random)
    course.pauses_s[::3, 3], course.pausing = 0.1, frozenset({3})
    return course


def moving(random: Draw) -> Course:
    return slowed(slowed(Course.healthy(random), (2,), 1.5, 100, 180), (5,), 1.5, 180)


def second(random: Draw) -> Course:
    return slowed(slowed(Course.healthy(random), (2,), 1.5, 80), (5,), 1.5, 180)


def creep(random: Draw) -> Course:
    course = slowed(Course.healthy(random), (3,), 1.4, 280)
    course.factors[80:280, 3] *= np.linspace(1, 1.4, 200)
    return course


def lengths_of_steps(random: Draw) -> Course:
    course = slowed(Course.healthy(random), (3,), 1.5, 100)
    course.factors *= np.exp(0.25 * random.standard_normal(NUM_STEPS))[:, None]
    return course


def lengths_of_ranks(random: Draw) -> Course:
    course = slowed(Course.healthy(random), (3,), 1.5, 100)
    course.factors *= np.exp(0.25 * random.standard_normal((NUM_STEPS, NUM_RANKS, 4))).mean(axis=2)
    return course


def slow_ring(random: Draw) -> Course:
    course = Course.healthy(random)
    course.transfers[100:], course.has_slow_link = 20.0, True
    return course


def slow_loader(random: Draw) -> Course:
    course = Course.healthy(random)
    course.factors[:, 1] *= 1.0 + 0.6 * (0.8 + 0.4 * random.random(NUM_STEPS))
    course.compute = frozenset({1})
    return course


def checkpoints(random: Draw) -> Course:
    course = Course.healthy(random)
    course.pauses_s[::20], course.are_all = 2.0, True
    return course


SITUATIONS: dict[str, Callable[[Draw], Course]] = {
    "one rank 1.5x, from 100 to 200": one_slow,
    "two ranks at once": two_slow,
    "half of the ranks": half_slow,
    "all ranks": all_slow,
    "1.5x from the first step": slow_from_start,
    "2x from step 8": slow_from_eight,
    "0.5 s every tenth step": long_pauses,
    "0.1 s every third step": short_pauses,
    "the straggler moves": moving,
    "a second straggler": second,
    "creep to 1.4x": creep,
    "lengths differ by step, 1.5x": lengths_of_steps,
    "lengths differ by rank, 1.5x": lengths_of_ranks,
    "ring transfer 20x": slow_ring,
    "a slow loader": slow_loader,
    "2 s checkpoint every 20 steps": checkpoints,
}


# Healthy jobs ---------------------------------------------------------------------------------------------------------


def white(random: Draw) -> Course:
    return Course.healthy(random, NUM_HEALTHY)


def correlated(random: Draw) -> Course:
    course, wave = Course.healthy(random, NUM_HEALTHY), np.zeros(NUM_RANKS)
    for step in range(NUM_HEALTHY):
        wave = 0.8 * wave + 0.04 * 0.6 * random.standard_normal(NUM_RANKS)
        course.factors[step] *= np.exp(wave)
    return course


def variable(random: Draw) -> Course:
    course = Course.healthy(random, NUM_HEALTHY)
    course.factors *= np.exp(0.25 * random.standard_normal((NUM_HEALTHY, NUM_RANKS, 4))).mean(axis=2)
    return course


def busy_host(random: Draw) -> Course:
    """Every rank waits for a core now and then."""
    course = Course.healthy(random, NUM_HEALTHY)
    course.pauses_s += np.where(
        random.random((NUM_HEALTHY, NUM_RANKS)) < 0.05, random.exponential(0.03, (NUM_HEALTHY, NUM_RANKS)), 0
    )
    return course


HEALTHY = {"white": white, "correlated": correlated, "variable lengths": variable, "busy host": busy_host}


# The job and what is said of it ---------------------------------------------------------------------------------------


def logs_of(course: Course, random: Draw, *, waits: bool) -> Iterator[list[CallLog]]:
    """The calls of all ranks, some steps at a time."""
    offsets, now = random.integers(0, 10**12, NUM_RANKS), np.full(NUM_RANKS, 1.0)
    groups = {GROUP: tuple(range(NUM_RANKS)), STEP_GROUP: ()}
    rows: list[list[tuple[int, ...]]] = [[] for _ in range(NUM_RANKS)]
    for step, (factors, pauses_s, transfer) in enumerate(
        zip(course.factors, course.pauses_s, course.transfers, strict=True)
    ):
        now = now + 0.4 * STEP_S * factors + pauses_s
        ended = now
        for bucket in range(BUCKETS):
            now = now + 0.5 * STEP_S / BUCKETS * factors
            took_s = TRANSFER_S * transfer * float(np.exp(0.05 * random.standard_normal()))
            ended = np.full(NUM_RANKS, max(float(now.max()), float(ended.max()) if bucket else 0.0) + took_s)
            ended = ended + 2e-5 * random.random(NUM_RANKS)
            for rank in range(NUM_RANKS):
                times = (now[rank], ended[rank])
                began_ns, ended_ns = (int(1e9 * each) + int(offsets[rank]) for each in times)
                number = step * BUCKETS + bucket
                rows[rank].append((Operation.ALL_REDUCE, -1, GROUP, number, 4 << 20, began_ns, ended_ns))
            now = ended if waits else now
        now = np.maximum(now, ended) + 0.1 * STEP_S * factors
        for rank in range(NUM_RANKS):
            at_ns = int(1e9 * now[rank]) + int(offsets[rank])
            rows[rank].append((Operation.STEP, -1, STEP_GROUP, step, 0, at_ns, at_ns))
        if (step + 1) % CHUNK == 0:
            yield [CallLog(rank, np.array(each, CALL), groups) for rank, each in enumerate(rows)]
            rows = [[] for _ in range(NUM_RANKS)]


@dataclass(slots=True)
class Said:
    """Events, and the table at the end."""

    events: list[SlowdownEvent] = field(default_factory=list)
    detector: StragglerDetector = field(default_factory=StragglerDetector)

    def named(self, *kinds: str) -> set[int]:
        """Ranks of all suspects of these kinds."""
        suspects = [each for event in self.events if event.is_slow for each in event.suspects]
        return {rank for each in suspects if each.kind in kinds for rank in each.ranks}


def watch(course: Course, seed: int, *, waits: bool) -> Said:
    """What the detector says of a job."""
    said = Said()
    for logs in logs_of(course, np.random.default_rng([seed, 7]), waits=waits):
        said.events += said.detector.see(logs)
    return said


def verdict(course: Course, said: Said) -> tuple[bool, bool]:
    """Whether all is named that is slow, with its kind; and whether a wrong rank was named."""
    guilty = course.compute | course.pausing
    blamed = said.named("compute", "pause")
    right = said.named("compute") >= course.compute and blamed >= course.pausing
    if course.has_slow_link:
        right = bool(said.named("link"))
    if course.are_all:
        slow = [event for event in said.events if event.is_slow]
        right = any(not event.suspects or len(event.suspects[0].ranks) == NUM_RANKS for event in slow)
        blamed = blamed if len(blamed) < NUM_RANKS else set()
    return right, bool(blamed - guilty)


def situations(tick: Callable[[], object], options: Namespace) -> tuple[list[Table], list[Check]]:
    """All situations, and healthy jobs."""
    rows, num_right, num_wrong, total = list[tuple[Cell, ...]](), 0, 0, 0
    for number, (name, make) in enumerate(SITUATIONS.items()):
        found = {}
        for waits in (True, False):
            jobs = [(make(np.random.default_rng([seed, number])), seed) for seed in SEEDS]
            found[waits] = [verdict(course, watch(course, seed, waits=waits)) for course, seed in jobs]
        both = [each for these in found.values() for each in these]
        num_right, num_wrong, total = (
            num_right + sum(r for r, _ in both),
            num_wrong + sum(w for _, w in both),
            total + len(both),
        )
        rows.append(
            (name, *(sum(right for right, _ in found[waits]) for waits in (True, False)), sum(w for _, w in both))
        )
        tick()
    healthy, most = list[tuple[Cell, ...]](), 0.0
    for number, (name, make) in enumerate(HEALTHY.items()):
        events = [
            len(watch(make(np.random.default_rng([seed, 100 + number])), seed, waits=bool(seed % 2)).events)
            for seed in HEALTHY_SEEDS
        ]
        healthy.append((name, *events))
        most = max(most, *events)
        tick()
    columns = (Column("situation"), Column("right, waiting"), Column("right, overlapped"), Column("wrong rank"))
    note = f"{len(SEEDS)} held-out jobs each"
    return [
        Table("Situations", columns, tuple(rows), note),
        Table(
            "False events in healthy jobs of 10,000 steps",
            (Column("noise"), *(Column(f"job {n}") for n in HEALTHY_SEEDS)),
            tuple(healthy),
        ),
    ], [
        Check.at_least("right verdicts", num_right, total, unit="jobs"),
        Check.at_most("wrong ranks", num_wrong, 0, unit="jobs"),
        Check.at_most("false events in 10,000 steps, most", most, HEALTHY_BAR),
    ]
