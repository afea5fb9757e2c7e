"""What a planner answers, and what happened when a schedule ran: a plan, and a timeline of operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from takeup.training.model.pipeline import Profile
from takeup.training.model.schedule import Op, Schedule

__all__ = ["Plan", "Span", "Timeline"]

Floats = npt.NDArray[np.float64]


class Span(NamedTuple):
    """One operation in time."""

    rank: int
    op: Op
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """When every operation of a schedule started and ended, by rank and in its order.

    `peak_live` counts, for every rank, the most pairs of stage and micro-batch whose F had started and whose weight
    gradient was not done; `iteration_s` includes the tails.
    """

    schedule: Schedule
    starts_s: tuple[Floats, ...]
    ends_s: tuple[Floats, ...]
    iteration_s: float
    peak_live: tuple[int, ...]

    @property
    def busy_s(self) -> float:
        """Time spent computing, of all ranks together."""
        return float(sum((ends - starts).sum() for starts, ends in zip(self.starts_s, self.ends_s, strict=True)))

    @property
    def bubble_share(self) -> float:
        """The share of the time of all ranks in which they do not compute."""
        whole_s = len(self.starts_s) * self.iteration_s
        return max(0.0, 1 - self.busy_s / whole_s) if whole_s > 0 else 0.0  # sums are rounded

    def spans(self) -> Iterator[Span]:
        """Every operation, rank by rank."""
        for rank, (starts, ends) in enumerate(zip(self.starts_s, self.ends_s, strict=True)):
            for op, start_s, end_s in zip(self.schedule.ops(rank), starts.tolist(), ends.tolist(), strict=True):
                yield Span(rank, op, start_s, end_s)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A schedule, what it is expected to take, and why it is as it is.

    `profile` is the one the schedule is for: a planner that cuts stages into chunks has other stages than it was given.
    No schedule takes less than `bound_s`. Ranks switch to the plan of a `version` together.
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
        """How much of the iteration time, at most, another schedule could save."""
        return 1 - self.bound_s / self.iteration_s if self.iteration_s > 0 else 0.0

    @property
    def fits_memory(self) -> bool:
        """Whether no rank holds more micro-batches than its memory allows."""
        limits = self.profile.live_limits()
        chunks = map(len, self.profile.chunks)
        return all(peak <= limit * num for peak, limit, num in zip(self.peak_live, limits, chunks, strict=True))
