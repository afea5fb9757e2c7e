"""Routing and batching of edits: round-robin, by queued tokens, by step time, or by predicted completion time.

`round_robin` and `fewest_tokens` are common baselines. `shortest_step` is FlashPS (EuroSys 2026), Algorithm 2: the
worker whose next step is shortest with the edit in its batch; it ignores templates and queues. `EarliestFinish`
predicts the completion time: queueing delay, the load of the template unless it is cached, and the edit's own steps in
the batch it would join.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field

from takeup.errors import BadInput


@dataclass(frozen=True, slots=True)
class EditJob:
    """An edit: the share of the image it computes, the template it needs, and its number of steps."""

    number: int
    arrival_s: float
    mask_share: float
    template: Hashable
    num_steps: int = 50


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step: a cost per call, a cost per edit, and a cost per edit in proportion to the largest mask.

    A batch is padded to its largest mask. The defaults were measured with SDXL at 1024x1024 on one H200, convolutions
    masked: a linear fit of steps of one edit at five masks (at most 7 % off), and mixed masks in batches of four.
    """

    call_s: float = 0.0066
    edit_s: float = 0.0010
    mask_s: float = 0.0309

    def __post_init__(self) -> None:
        if min(self.call_s, self.edit_s, self.mask_s) < 0:
            raise BadInput(f"costs of a step are {self}; give seconds from zero up")

    def __call__(self, mask_shares: Sequence[float]) -> float:
        """Seconds of one step with these edits in one batch."""
        if not mask_shares:
            return 0.0
        return self.call_s + len(mask_shares) * (self.edit_s + self.mask_s * max(mask_shares))


@dataclass(frozen=True, slots=True)
class WorkerView:
    """The router's view of a worker: running edits with their steps left, waiting edits, and cached templates."""

    running: Sequence[tuple[EditJob, int]]
    waiting: Sequence[EditJob]
    templates: Collection[Hashable]
    max_batch: int

    @property
    def num_edits(self) -> int:
        return len(self.running) + len(self.waiting)

    @property
    def steps_left(self) -> int:
        """Remaining steps, summed over running and waiting edits."""
        return sum(left for _, left in self.running) + sum(job.num_steps for job in self.waiting)

    def batch_with(self, job: EditJob) -> list[float]:
        """Mask shares of the batch that the edit would join: running, then waiting edits, up to `max_batch`."""
        shares = [one.mask_share for one, _ in self.running] + [one.mask_share for one in self.waiting]
        return [*shares[: self.max_batch - 1], job.mask_share]


EditRoute = Callable[[EditJob, Sequence[WorkerView]], int]
"""The number of the worker that serves an edit."""


def round_robin(job: EditJob, workers: Sequence[WorkerView]) -> int:
    """Workers in cyclic order of edit numbers."""
    return job.number % len(workers)


def fewest_tokens(job: EditJob, workers: Sequence[WorkerView]) -> int:
    """The worker with the fewest masked tokens left to compute; ties go to the one with fewer edits."""

    def tokens(view: WorkerView) -> float:
        waiting = sum(one.mask_share * one.num_steps for one in view.waiting)
        return waiting + sum(one.mask_share * left for one, left in view.running)

    return min(range(len(workers)), key=lambda number: (tokens(workers[number]), workers[number].num_edits))


@dataclass(frozen=True, slots=True)
class shortest_step:  # noqa: N801  it is used as a function
    """The worker whose step with the edit is shortest, among workers with a free batch slot."""

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
    """The worker with the earliest predicted completion; loading a missing template takes `load_s`, while queued."""

    costs: StepCosts = field(default_factory=StepCosts)
    load_s: float = 4.0

    def __call__(self, job: EditJob, workers: Sequence[WorkerView]) -> int:
        """The number of the worker."""
        return min(range(len(workers)), key=lambda number: self.finish_s(job, workers[number]))

    def finish_s(self, job: EditJob, view: WorkerView) -> float:
        """Predicted seconds until the edit is done on this worker."""
        step_s = self.costs(view.batch_with(job))
        num_before = view.num_edits - view.max_batch + 1
        waits_s = 0.0
        if num_before > 0:  # this many edits must finish before it can join; the batch runs meanwhile
            waits_s = step_s * view.steps_left / view.max_batch * num_before / max(1, view.num_edits)
        loads_s = 0.0 if job.template in view.templates else self.load_s
        return max(waits_s, loads_s) + job.num_steps * step_s


EDIT_ROUTES: dict[str, Callable[[], EditRoute]] = {
    "round_robin": lambda: round_robin,
    "fewest_tokens": lambda: fewest_tokens,
    "shortest_step": shortest_step,
    "earliest_finish": EarliestFinish,
}


# Joining a batch ----------------------------------------------------------------------------------------------------

JoinRule = Callable[[Sequence[EditJob], Sequence[EditJob], int], list[EditJob]]
"""The edits that join a batch: from those that are ready, given the running ones and the number of free slots."""


def fifo(ready: Sequence[EditJob], running: Sequence[EditJob], num_free: int) -> list[EditJob]:
    """Ready edits in order of arrival (FIFO)."""
    return sorted(ready, key=lambda job: (job.arrival_s, job.number))[:num_free]


@dataclass(frozen=True, slots=True)
class similar_masks:  # noqa: N801  it is used as a function
    """Edits whose mask is closest to the largest of the batch; one older than the newest by `patience_s` is first."""

    patience_s: float = 2.0

    def __call__(self, ready: Sequence[EditJob], running: Sequence[EditJob], num_free: int) -> list[EditJob]:
        """The edits that join the batch."""
        left = sorted(ready, key=lambda job: (job.arrival_s, job.number))
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
