"""Result of a planner (a plan), and of running a schedule (a timeline of operations)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from takeup.core.arrays import Floats
from takeup.training.model.pipeline import Profile
from takeup.training.model.schedule import Op, Schedule


class Span(NamedTuple):
    """One operation in time."""

    rank: int
    op: Op
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
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
        """Total compute time of all ranks."""
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
class PipelinePlan:
    """A schedule, its predicted time, and the reason for it.

    `profile` is the one the schedule is for: a planner that cuts stages into chunks changes the profile it was given.
    No schedule takes less than `bound_s`. All ranks switch to the plan of a `version` in the same iteration.
    """

    planner: str
    profile: Profile
    schedule: Schedule
    iteration_s: float
    bound_s: float
    peak_live: tuple[int, ...]
    reasons: tuple[str, ...] = ()
    num_evaluations: int = 1
    version: int = 0

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
