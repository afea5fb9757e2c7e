"""Schedules, plans and timelines: the order of operations of every rank, the plan that chose it, and when they run.

A schedule is immutable data that is validated on construction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Floats, Ints
from takeup.core.report import Reported
from takeup.errors import BadInput
from takeup.training.pipelines.profile import Profile

# A schedule: the order of operations of every rank, as immutable data that is validated on construction ---------------
#
# Operations are encoded as integers, `(stage * num_microbatches + microbatch) * 4 + kind`, because a large schedule
# has a hundred thousand of them. On each stage every micro-batch has an F, then either I and later W, or both at once
# as B, and micro-batches are in order. `to_csv` writes what the pipeline runtime of PyTorch loads as `compute_only`.

NUM_KINDS = 4
ACTION = re.compile(r"(\d{1,6})([FIWB])(\d{1,6})")


class OpKind(IntEnum):
    """What an operation computes; the letters of PyTorch are F, I, W and B."""

    FORWARD = 0
    INPUT_GRADIENT = 1
    WEIGHT_GRADIENT = 2
    FULL_BACKWARD = 3

    @property
    def letter(self) -> str:
        return "FIWB"[self]


class Op(NamedTuple):
    """One operation on one micro-batch."""

    stage: int
    kind: OpKind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.letter}{self.microbatch}"


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """The order of operations of every rank. Arrays are copied and read-only."""

    codes: tuple[Ints, ...]
    placement: tuple[int, ...]
    num_microbatches: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "codes", tuple(_frozen(codes) for codes in self.codes))
        if len(self.codes) != 1 + max(self.placement, default=-1):
            raise BadInput(f"found orders for {len(self.codes)} ranks and a placement {self.placement} of stages")
        _check(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self.to_csv() == other.to_csv()

    def __hash__(self) -> int:
        return hash(self.to_csv())

    @classmethod
    def of_ops(cls, orders: Iterable[Iterable[Op]], placement: Sequence[int], num_microbatches: int) -> Schedule:
        codes = [
            np.array([(op.stage * num_microbatches + op.microbatch) * NUM_KINDS + op.kind for op in order], np.int64)
            for order in orders
        ]
        return cls(tuple(codes), tuple(placement), num_microbatches)

    @classmethod
    def from_csv(cls, text: str) -> Schedule:
        """Read the output of `to_csv` or of PyTorch: one row per rank; empty cells are skipped."""
        rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.strip()]
        orders = [[_op(cell, rank) for cell in row if cell] for rank, row in enumerate(rows)]
        rank_of = {op.stage: rank for rank, order in enumerate(orders) for op in order}
        if sorted(rank_of) != list(range(len(rank_of))) or not rank_of:
            raise BadInput(f"found the stages {sorted(rank_of)}; a schedule needs all stages from 0 up")
        num_microbatches = 1 + max(op.microbatch for order in orders for op in order)
        if len(rank_of) * num_microbatches > sum(map(len, orders)):
            raise BadInput(f"found micro-batch {num_microbatches - 1}, but not all before it; number them from 0")
        return cls.of_ops(orders, [rank_of[stage] for stage in range(len(rank_of))], num_microbatches)

    def to_csv(self) -> str:
        """One row per rank, with cells such as `2F0,2I0,2W0`."""
        return "".join(",".join(map(str, self.ops(rank))) + "\n" for rank in range(len(self.codes)))

    @property
    def num_stages(self) -> int:
        return len(self.placement)

    def ops(self, rank: int) -> list[Op]:
        cells, kinds = np.divmod(self.codes[rank], NUM_KINDS)
        stages, microbatches = np.divmod(cells, self.num_microbatches)
        return [
            Op(s, OpKind(k), m) for s, k, m in zip(stages.tolist(), kinds.tolist(), microbatches.tolist(), strict=True)
        ]

    def warmups(self) -> tuple[int, ...]:
        """Number of forwards that every stage computes before its first backward."""
        place = _places(self)
        first = _backward(place)[:, :1]
        return tuple(int(count) for count in (place[OpKind.FORWARD] < first).sum(axis=1))


def _frozen(codes: Ints) -> Ints:
    copy = np.array(codes, np.int64)
    copy.setflags(write=False)
    return copy


def _op(cell: str, rank: int) -> Op:
    found = ACTION.fullmatch(cell)
    if found is None:
        raise BadInput(f"row {rank + 1}: {cell!r} is no operation; write stage, F, I, W or B, micro-batch, such as 2F0")
    return Op(int(found[1]), OpKind("FIWB".index(found[2])), int(found[3]))


# Validity -------------------------------------------------------------------------------------------------------------


def _places(schedule: Schedule) -> Ints:
    """Index of each operation in the order of its rank, by kind, stage and micro-batch; -1 if it is absent."""
    place = np.full((NUM_KINDS, schedule.num_stages, schedule.num_microbatches), -1, np.int64)
    cells, kinds = np.divmod(np.concatenate(schedule.codes), NUM_KINDS)
    place.reshape(NUM_KINDS, -1)[kinds, cells] = np.concatenate([np.arange(codes.size) for codes in schedule.codes])
    return place


def _backward(place: Ints) -> Ints:
    return np.asarray(np.maximum(place[OpKind.INPUT_GRADIENT], place[OpKind.FULL_BACKWARD]))


def _check(schedule: Schedule) -> None:
    """Reject schedules that no pipeline can run: operations missing, duplicated, on the wrong rank or out of order."""
    _check_codes(schedule)
    place = _places(schedule)
    if (place >= 0).sum() != sum(codes.size for codes in schedule.codes):
        raise BadInput("an operation stands twice in the schedule; list each once")
    split, fused = place[OpKind.INPUT_GRADIENT] >= 0, place[OpKind.FULL_BACKWARD] >= 0
    _refuse(place[OpKind.FORWARD] < 0, "has no F")
    _refuse(split == fused, "needs either I and W, or B")
    _refuse(split != (place[OpKind.WEIGHT_GRADIENT] >= 0), "needs a W if it has an I, and only then")
    backward = _backward(place)
    _refuse(place[OpKind.FORWARD] > backward, "has its backward before its F")
    _refuse(split & (place[OpKind.WEIGHT_GRADIENT] < backward), "has its W before its I")
    for each in (place[OpKind.FORWARD], backward, place[OpKind.WEIGHT_GRADIENT]):
        latest = np.maximum.accumulate(each, axis=1)
        _refuse((each[:, 1:] >= 0) & (each[:, 1:] <= latest[:, :-1]), "is overtaken by the next micro-batch")
    _check_warmups((place[OpKind.FORWARD] < backward[:, :1]).sum(axis=1).tolist())


def _check_codes(schedule: Schedule) -> None:
    stages = np.concatenate(schedule.codes) // (NUM_KINDS * schedule.num_microbatches)
    ranks = np.repeat(np.arange(len(schedule.codes)), [codes.size for codes in schedule.codes])
    outside = (stages < 0) | (stages >= schedule.num_stages)
    if outside.any():
        raise BadInput(f"rank {ranks[outside][0]} has an operation of a stage that is not in the placement")
    elsewhere = np.asarray(schedule.placement)[stages] != ranks
    if elsewhere.any():
        raise BadInput(f"rank {ranks[elsewhere][0]} has an operation of a stage that is placed on another rank")


def _refuse(wrong: npt.NDArray[np.bool_], words: str) -> None:
    if wrong.any():
        stage, microbatch = np.argwhere(wrong)[0].tolist()
        raise BadInput(f"micro-batch {microbatch} on stage {stage} {words}; correct the order of its rank")


def _check_warmups(counts: list[int]) -> None:
    """A stage with fewer warm-ups than the next one would deadlock: Lemma 1 of the paper."""
    for stage, (here, after) in enumerate(pairwise(counts)):
        if here < after:
            raise BadInput(
                f"stage {stage} has {here} forwards before its first backward and stage {stage + 1} has {after}; "
                "warm-ups must not grow along the pipeline, or the first backward waits for itself"
            )


# Result of a planner (a plan), and of running a schedule (a timeline of operations) -----------------------------------


class Span(NamedTuple):
    """One operation in time."""

    rank: int
    op: Op
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Timeline(Reported):
    """Start and end of every operation of a schedule, by rank and in its order.

    `peak_live` is, for every rank, the peak number of pairs of stage and micro-batch whose F had started and whose
    weight gradient was not done; `iteration_s` includes the tails.
    """

    schedule: Schedule
    starts_s: tuple[Floats, ...]
    ends_s: tuple[Floats, ...]
    iteration_s: float
    peak_live: tuple[int, ...]

    @property
    def busy_s(self) -> float:
        return float(sum((ends - starts).sum() for starts, ends in zip(self.starts_s, self.ends_s, strict=True)))

    @property
    def bubble_share(self) -> float:
        """Share of the time of all ranks in which they are idle."""
        whole_s = len(self.starts_s) * self.iteration_s
        return max(0.0, 1 - self.busy_s / whole_s) if whole_s > 0 else 0.0  # floating-point sums

    def spans(self) -> Iterator[Span]:
        """Every operation, rank by rank."""
        for rank, (starts, ends) in enumerate(zip(self.starts_s, self.ends_s, strict=True)):
            for op, start_s, end_s in zip(self.schedule.ops(rank), starts.tolist(), ends.tolist(), strict=True):
                yield Span(rank, op, start_s, end_s)


@dataclass(frozen=True, slots=True, eq=False)
class PipelinePlan(Reported):
    """A schedule, its predicted time, and the reason for it.

    `profile` is the one the schedule is for: a planner that cuts stages into chunks changes the profile it was given.
    No schedule takes less than `bound_s`.
    """

    planner: str
    profile: Profile
    schedule: Schedule
    iteration_s: float
    bound_s: float
    peak_live: tuple[int, ...]
    reasons: tuple[str, ...] = ()
    num_evaluations: int = 1

    @property
    def gap_share(self) -> float:
        """Upper bound on the share of the iteration time that another schedule could save."""
        return 1 - self.bound_s / self.iteration_s if self.iteration_s > 0 else 0.0

    @property
    def fits_memory(self) -> bool:
        """Whether no rank holds more micro-batches than its memory allows."""
        limits = self.profile.live_limits()
        chunks = map(len, self.profile.chunks)
        return all(peak <= limit * num for peak, limit, num in zip(self.peak_live, limits, chunks, strict=True))
