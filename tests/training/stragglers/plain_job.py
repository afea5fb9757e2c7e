"""A plain simulator of ranks that compute and call each other, for tests: it writes the logs that a watcher would see.

Every rank runs its own list of steps: compute, begin a collective call, wait for all that were begun, send, receive.
A collective starts when all have come and the one before it in its group is done; messages meet. Clocks are skewed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from takeup.training.stragglers.contract import CALL, CallLog, Operation

Step = tuple[str, float, int, int]  # what; seconds or bytes; group or peer; operation
Key = tuple[int, ...]
WORLD = 0


@dataclass
class Faults:
    """What is slow in some iterations: ranks by their factor, links (pairs) by theirs."""

    since: int = 0
    until: int = 10**9
    ranks: dict[int, float] = field(default_factory=dict)
    links: dict[tuple[int, int], float] = field(default_factory=dict)

    def of_rank(self, rank: int, iteration: int) -> float:
        return self.ranks.get(rank, 1.0) if self.since <= iteration < self.until else 1.0

    def of_link(self, one: int, other: int, iteration: int) -> float:
        return self.links.get((min(one, other), max(one, other)), 1.0) if self.since <= iteration < self.until else 1.0


@dataclass
class Job:
    """Ranks in groups, and what each does in an iteration; bytes take `byte_s` over one link."""

    groups: dict[int, tuple[int, ...]]
    steps: Callable[[int, int], list[Step]]  # of a rank, in an iteration
    byte_s: float = 1e-9

    @property
    def num_ranks(self) -> int:
        return 1 + max(rank for ranks in self.groups.values() for rank in ranks)


def data_parallel(num_ranks: int, *, overlap: bool = True) -> Job:
    """Three buckets of gradients reduced while the backward goes on, the loss, and a broadcast now and then."""

    def steps(rank: int, iteration: int) -> list[Step]:
        wait: list[Step] = [] if overlap else [("wait", 0, 0, 0)]
        buckets = [
            step
            for size in (3e6, 2e6, 2e6)
            for step in [("compute", 0.02, 0, 0), ("call", size, WORLD, Operation.ALL_REDUCE), *wait]
        ]
        loss: list[Step] = [("call", 4, WORLD, Operation.ALL_REDUCE), ("wait", 0, 0, 0)]
        logging: list[Step] = [("call", 64, WORLD, Operation.BROADCAST), ("wait", 0, 0, 0)]
        update: list[Step] = [("wait", 0, 0, 0), ("compute", 0.005, 0, 0)]
        return [
            ("compute", 0.03, 0, 0),
            *buckets,
            *update,
            *loss,
            *(logging if iteration % 10 == 0 else []),
        ]

    return Job({WORLD: tuple(range(num_ranks))}, steps)


def two_by_two() -> Job:
    """Two pipelines of two stages, four micro-batches; ranks 0 and 1 are one pipeline, 0 and 2 one replicated stage."""
    groups = {WORLD: (0, 1, 2, 3), 1: (0, 2), 2: (1, 3)}

    def steps(rank: int, iteration: int) -> list[Step]:
        stage, peer = rank % 2, rank + 1 - 2 * (rank % 2)
        forward, backward = ("compute", 0.01, 0, 0), ("compute", 0.02, 0, 0)
        send, receive = ("send", 2e6, peer, Operation.SEND), ("receive", 2e6, peer, Operation.RECEIVE)
        work: list[Step] = [forward, send] * 4 + [receive, backward] * 4
        if stage:
            work = [receive, forward] * 4 + [backward, send] * 4
        reduce: list[Step] = [("call", 8e6, 1 + stage, Operation.ALL_REDUCE), ("wait", 0, 0, 0)]
        loss: list[Step] = [("call", 4, WORLD, Operation.ALL_REDUCE), ("wait", 0, 0, 0)]
        return [*work, *reduce, ("compute", 0.005, 0, 0), *loss]

    return Job(groups, steps)


def one_pipeline(num_stages: int = 5) -> Job:
    """One pipeline, four micro-batches; activations and gradients are of the same size."""

    def steps(rank: int, iteration: int) -> list[Step]:
        def handed_on(source: int, seconds: float, target: int) -> list[Step]:
            receive = [("receive", 2e6, source, Operation.RECEIVE)] if 0 <= source < num_stages else []
            send = [("send", 2e6, target, Operation.SEND)] if 0 <= target < num_stages else []
            return [*receive, ("compute", seconds, 0, 0), *send]

        work = handed_on(rank - 1, 0.01, rank + 1) * 4 + handed_on(rank + 1, 0.02, rank - 1) * 4
        return [*work, ("compute", 0.005, 0, 0), ("call", 4, WORLD, Operation.ALL_REDUCE), ("wait", 0, 0, 0)]

    return Job({WORLD: tuple(range(num_stages))}, steps)


def tensor_and_data(num_data: int = 3) -> Job:
    """Pairs that reduce after each of six layers, and replicas of them."""
    pairs = {10 + n: (2 * n, 2 * n + 1) for n in range(num_data)}
    replicas = {20 + side: tuple(range(side, 2 * num_data, 2)) for side in (0, 1)}

    def steps(rank: int, iteration: int) -> list[Step]:
        layer: list[Step] = [
            ("compute", 0.01, 0, 0),
            ("call", 1e6, 10 + rank // 2, Operation.ALL_REDUCE),
            ("wait", 0, 0, 0),
        ]
        reduce: list[Step] = [("call", 6e6, 20 + rank % 2, Operation.ALL_REDUCE), ("wait", 0, 0, 0)]
        return [*layer * 6, *reduce, ("compute", 0.005, 0, 0)]

    return Job(pairs | replicas, steps)


# The simulator --------------------------------------------------------------------------------------------------------


def logs_of(job: Job, num_iterations: int, faults: Faults, seed: int, *, noise: float = 0.03) -> list[CallLog]:
    """What every rank's log holds after so many iterations; clocks are off by up to an hour."""
    return _Run(job, faults, np.random.default_rng(seed), noise).logs(num_iterations)


def cut(logs: list[CallLog], num_iterations: int, total: int) -> tuple[list[CallLog], list[CallLog]]:
    """The logs before and after some iteration, cut at the same share of the calls of every rank."""
    places = [len(log.calls) * num_iterations // total for log in logs]
    before = [CallLog(log.rank, log.calls[:place], log.groups) for log, place in zip(logs, places, strict=True)]
    after = [CallLog(log.rank, log.calls[place:], log.groups) for log, place in zip(logs, places, strict=True)]
    return before, after


class _Run:
    def __init__(self, job: Job, faults: Faults, random: np.random.Generator, noise: float) -> None:
        self.job, self.faults, self.random, self.noise = job, faults, random, noise
        self.arrived: dict[Key, dict[int, float]] = defaultdict(dict)
        self.ends: dict[Key, dict[int, float]] = {}
        self.numbers: dict[Key, int] = defaultdict(int)
        self.rows: dict[int, list[list[int]]] = {rank: [] for rank in range(job.num_ranks)}

    def logs(self, num_iterations: int) -> list[CallLog]:
        waiting = {rank: self.run(rank, num_iterations) for rank in range(self.job.num_ranks)}
        while waiting:
            for rank, steps in list(waiting.items()):
                if next(steps, "done") == "done":
                    del waiting[rank]
        return [self.log(rank) for rank in self.rows]

    def log(self, rank: int) -> CallLog:
        skew = int(self.random.integers(-3600, 3600)) * 10**9 + 10**18
        rows = [(*row[:5], row[5] + skew, row[6] + skew) for row in self.rows[rank]]
        groups = {group: ranks for group, ranks in self.job.groups.items() if rank in ranks} | {-1: ()}
        return CallLog(rank, np.array(sorted(rows, key=lambda row: row[5]), CALL), groups)

    def run(self, rank: int, num_iterations: int) -> Iterator[str]:
        """Goes on until it has to wait for somebody else."""
        now, begun = 0.0, list[tuple[Key, list[int]]]()
        for iteration in range(num_iterations):
            for step in self.job.steps(rank, iteration):
                what, amount = step[:2]
                if what == "compute":
                    spread = np.exp(self.noise * self.random.standard_normal())
                    now += amount * spread * self.faults.of_rank(rank, iteration)
                    continue
                if what != "wait":
                    begun.append(self.begin(rank, step, now, iteration))
                if what != "call":
                    for key, row in begun:
                        while rank not in self.ends.get(key, {}):
                            yield "waiting"
                        now = max(now, self.ends[key][rank])
                        row[-1] = int(self.ends[key][rank] * 1e9)
                    begun.clear()

    def begin(self, rank: int, step: Step, now: float, iteration: int) -> tuple[Key, list[int]]:
        what, amount, where, operation = step
        key: Key
        if what == "call":
            number = self.next_number((rank, where))
            key, members, peer, group = (where, number), self.job.groups[where], -1, where
        else:
            number = self.next_number((rank, where, 0 if what == "send" else 1))
            members = (rank, where) if what == "send" else (where, rank)
            key, peer, group = (-1, *members, number), where, -1
        self.arrive(key, rank, now, members, int(amount), iteration)
        self.rows[rank].append([operation, peer, group, number, int(amount), int(now * 1e9), 0])
        return key, self.rows[rank][-1]

    def next_number(self, counter: Key) -> int:
        self.numbers[counter] += 1
        return self.numbers[counter]

    def arrive(self, key: Key, rank: int, now: float, members: tuple[int, ...], size: int, iteration: int) -> None:
        self.arrived[key][rank] = now
        if len(self.arrived[key]) == len(members):
            earlier = max(self.ends.get((*key[:-1], key[-1] - 1), {0: 0.0}).values())
            start = max(earlier, *self.arrived[key].values())
            lasts = self.ring(members, size, iteration)
            self.ends[key] = {each: start + last for each, last in zip(members, lasts, strict=True)}

    def ring(self, members: tuple[int, ...], size: int, iteration: int) -> list[float]:
        """When each is done: portions go round, each leaving when it has come and the link is free."""
        number, follows = len(members), members[1:] + members[:1]
        portion_s = 2e-5 + size / number * self.job.byte_s
        hops = [
            portion_s * self.faults.of_link(one, other, iteration) * np.exp(self.noise * self.random.standard_normal())
            for one, other in zip(members, follows, strict=True)
        ]
        if number == 2:
            return [max(hops) * 2] * 2
        done = [0.0] * number
        for _ in range(2 * (number - 1)):
            done = [max(done[place - 1], done[place]) + hops[place - 1] for place in range(number)]
        return done
