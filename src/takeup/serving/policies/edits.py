"""Where an edit is served, and with whom: by turns, by tokens, by the step it makes, or by when it would be done.

`round_robin` and `fewest_tokens` are what servers do. `shortest_step` is FlashPS (EuroSys 2026), Algorithm 2: the one
whose next step would be shortest with the edit in its batch; it knows neither templates nor queues. `EarliestFinish`
predicts when the edit would be done: what waits before it, the load of its template unless it is there, and its own
steps in the batch it would join.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field

from takeup.errors import BadInput

__all__ = [
    "EDIT_ROUTES",
    "EarliestFinish",
    "EditJob",
    "StepCosts",
    "WorkerView",
    "by_deadline",
    "fewest_tokens",
    "in_turn",
    "round_robin",
    "shortest_step",
    "similar_masks",
]


@dataclass(frozen=True, slots=True)
class EditJob:
    """An edit: which share of the image it computes, the template it needs, and how many steps it takes."""

    number: int
    arrival_s: float
    mask_share: float
    template: Hashable
    num_steps: int = 50
    deadline_s: float = math.inf


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step: something for the call, something for each edit, and more for each with the largest mask.

    A batch is padded to its largest mask. The usual numbers are those of SDXL at 1024x1024 on one H200, convolutions
    masked: a line through steps of one edit at five masks (at most 7 % off), and mixed masks in batches of four.
    """

    call_s: float = 0.0066
    edit_s: float = 0.0010
    mask_s: float = 0.0309

    def __post_init__(self) -> None:
        if min(self.call_s, self.edit_s, self.mask_s) < 0:
            raise BadInput(f"costs of a step are {self}; give seconds from zero up")

    def __call__(self, mask_shares: Sequence[float]) -> float:
        """A step of these edits together."""
        if not mask_shares:
            return 0.0
        return self.call_s + len(mask_shares) * (self.edit_s + self.mask_s * max(mask_shares))


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as a route sees it: edits in its batch, with the steps they have left, those behind, its templates."""

    running: Sequence[tuple[EditJob, int]]
    waiting: Sequence[EditJob]
    templates: Collection[Hashable]
    max_batch: int

    @property
    def num_edits(self) -> int:
        return len(self.running) + len(self.waiting)

    @property
    def steps_left(self) -> int:
        """Of all edits together."""
        return sum(left for _, left in self.running) + sum(job.num_steps for job in self.waiting)

    def batch_with(self, job: EditJob) -> list[float]:
        """Masks of the batch that the edit would be in: the running ones, or as many as fit."""
        shares = [one.mask_share for one, _ in self.running] + [one.mask_share for one in self.waiting]
        return [*shares[: self.max_batch - 1], job.mask_share]


Route = Callable[[EditJob, Sequence[WorkerView]], int]
"""The number of the worker that serves an edit."""


def round_robin(job: EditJob, workers: Sequence[WorkerView]) -> int:
    """One after the other."""
    return job.number % len(workers)


def fewest_tokens(job: EditJob, workers: Sequence[WorkerView]) -> int:
    """Where the fewest masked tokens are still to be computed."""

    def tokens(view: WorkerView) -> float:
        waiting = sum(one.mask_share * one.num_steps for one in view.waiting)
        return waiting + sum(one.mask_share * left for one, left in view.running)

    return min(range(len(workers)), key=lambda number: (tokens(workers[number]), workers[number].num_edits))


@dataclass(frozen=True, slots=True)
class shortest_step:  # noqa: N801  it is used as a function
    """Where the step with the edit is shortest, among workers with room in their batch."""

    costs: StepCosts = field(default_factory=StepCosts)

    def __call__(self, job: EditJob, workers: Sequence[WorkerView]) -> int:
        """The number of the worker."""
        free = [number for number, view in enumerate(workers) if view.num_edits < view.max_batch]
        chosen = free or range(len(workers))
        return min(chosen, key=lambda one: (workers[one].num_edits if not free else 0, self._step_s(job, workers[one])))

    def _step_s(self, job: EditJob, view: WorkerView) -> float:
        return self.costs(view.batch_with(job))


@dataclass(frozen=True, slots=True)
class EarliestFinish:
    """Where the edit would be done first; a template that is not there takes `load_s`, beside what is computed."""

    costs: StepCosts = field(default_factory=StepCosts)
    load_s: float = 4.0

    def __call__(self, job: EditJob, workers: Sequence[WorkerView]) -> int:
        """The number of the worker."""
        return min(range(len(workers)), key=lambda number: self.finish_s(job, workers[number]))

    def finish_s(self, job: EditJob, view: WorkerView) -> float:
        """Seconds until the edit would be done."""
        step_s = self.costs(view.batch_with(job))
        num_before = view.num_edits - view.max_batch + 1
        waits_s = 0.0
        if num_before > 0:  # so many must leave before it can join; the batch goes on meanwhile
            waits_s = step_s * view.steps_left / view.max_batch * num_before / max(1, view.num_edits)
        loads_s = 0.0 if job.template in view.templates else self.load_s
        return max(waits_s, loads_s) + job.num_steps * step_s


EDIT_ROUTES: dict[str, Callable[[], Route]] = {
    "round_robin": lambda: round_robin,
    "fewest_tokens": lambda: fewest_tokens,
    "shortest_step": shortest_step,
    "earliest_finish": EarliestFinish,
}


# Who joins a batch --------------------------------------------------------------------------------------------------


def in_turn(ready: Sequence[EditJob], running: Sequence[EditJob], num_free: int) -> list[EditJob]:
    """As they came."""
    return sorted(ready, key=lambda job: (job.arrival_s, job.number))[:num_free]


def by_deadline(ready: Sequence[EditJob], running: Sequence[EditJob], num_free: int) -> list[EditJob]:
    """The nearest deadline first, then as they came."""
    return sorted(ready, key=lambda job: (job.deadline_s, job.arrival_s, job.number))[:num_free]


@dataclass(frozen=True, slots=True)
class similar_masks:  # noqa: N801  it is used as a function
    """The oldest first, then who is nearest to the batch in its mask; nobody is overtaken beyond `patience_s`."""

    patience_s: float = 2.0

    def __call__(self, ready: Sequence[EditJob], running: Sequence[EditJob], num_free: int) -> list[EditJob]:
        """The edits that join."""
        left = sorted(ready, key=lambda job: (job.deadline_s, job.arrival_s, job.number))
        batch, joined = [job.mask_share for job in running], list[EditJob]()
        while left and len(joined) < num_free:
            newest_s = max(job.arrival_s for job in left)
            late = left[0].arrival_s + self.patience_s < newest_s or not batch
            chosen = left[0] if late else min(left, key=lambda job: _padding(job, batch))
            left.remove(chosen)
            joined.append(chosen)
            batch.append(chosen.mask_share)
        return joined


def _padding(job: EditJob, batch: Sequence[float]) -> float:
    return abs(job.mask_share - max(batch))
