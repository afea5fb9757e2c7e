"""Workers that edit in virtual time: batches form at every step, missing templates are loaded from storage."""

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from takeup.errors import BadInput
from takeup.serving.scheduling.edit_routing import EditJob, EditRoute, JoinRule, StepCosts, WorkerView


@dataclass(frozen=True, slots=True)
class EditFleet:
    """Equal workers. `load_s` is how long a template takes that is not among the `num_templates` of a worker."""

    num_workers: int = 8
    max_batch: int = 4
    num_templates: int = 180
    load_s: float = 4.0

    def __post_init__(self) -> None:
        if min(self.num_workers, self.max_batch, self.num_templates) < 1 or self.load_s < 0:
            raise BadInput(
                f"the fleet is {self}; give at least one worker, edit and template, and seconds from zero up"
            )


@dataclass(frozen=True, slots=True)
class EditOutcome:
    """Latencies by edit, in the order of their numbers, and how many templates were loaded."""

    latencies_s: tuple[float, ...]
    num_loads: int

    @property
    def mean_s(self) -> float:
        return float(np.mean(self.latencies_s))

    def percentile_s(self, percent: float) -> float:
        """This percentile of the latencies, in seconds."""
        return float(np.percentile(self.latencies_s, percent))


@dataclass(slots=True)
class _EditWorker:
    running: list[tuple[EditJob, int]] = field(default_factory=list)  # edit, steps left
    waiting: list[tuple[float, EditJob]] = field(default_factory=list)  # ready at, edit
    templates: OrderedDict[Hashable, None] = field(default_factory=OrderedDict)
    is_busy: bool = False


class _EditSimulation:
    def __init__(self, fleet: EditFleet, route: EditRoute, join: JoinRule, costs: StepCosts) -> None:
        self._fleet, self._route, self._join, self._costs = fleet, route, join, costs
        self._workers = [_EditWorker() for _ in range(fleet.num_workers)]
        self._events: list[tuple[float, int, str, Any]] = []
        self._count = 0
        self.done: dict[int, float] = {}
        self.num_loads = 0

    def run(self, jobs: Sequence[EditJob]) -> None:
        for job in jobs:
            self._at(job.arrival_s, "arrival", job)
        while self._events:
            now_s, _, what, about = heapq.heappop(self._events)
            if what == "arrival":
                self._arrive(now_s, about)
            else:
                self._step(now_s, about)

    def _at(self, when_s: float, what: str, about: Any) -> None:
        self._count += 1
        heapq.heappush(self._events, (when_s, self._count, what, about))

    def _arrive(self, now_s: float, job: EditJob) -> None:
        views = [
            WorkerView(each.running, [one for _, one in each.waiting], each.templates.keys(), self._fleet.max_batch)
            for each in self._workers
        ]
        worker = self._workers[self._route(job, views)]
        worker.waiting.append((now_s + self._fetch(worker, job.template), job))
        if not worker.is_busy:
            self._wake(now_s, worker)

    def _fetch(self, worker: _EditWorker, template: Hashable) -> float:
        """Seconds until the template is there; the one unused for longest makes room."""
        missing = template not in worker.templates
        worker.templates[template] = None
        worker.templates.move_to_end(template)
        if len(worker.templates) > self._fleet.num_templates:
            worker.templates.popitem(last=False)
        self.num_loads += missing
        return self._fleet.load_s if missing else 0.0

    def _wake(self, now_s: float, worker: _EditWorker) -> None:
        """Schedule the next step: now if edits are running, else when the first template is loaded."""
        worker.is_busy = bool(worker.running or worker.waiting)
        if worker.is_busy:
            first_s = now_s if worker.running else max(now_s, min(ready_s for ready_s, _ in worker.waiting))
            self._at(first_s, "step", worker)

    def _finish(self, now_s: float, worker: _EditWorker) -> None:
        for job, left in worker.running:
            if left == 0:
                self.done[job.number] = now_s - job.arrival_s
        worker.running = [(job, left) for job, left in worker.running if left > 0]

    def _step(self, now_s: float, worker: _EditWorker) -> None:
        """Step boundary: remove finished edits, let ready edits join the batch, and start the next step."""
        self._finish(now_s, worker)
        ready = [job for ready_s, job in worker.waiting if ready_s <= now_s]
        num_free = self._fleet.max_batch - len(worker.running)
        joined = self._join(ready, [job for job, _ in worker.running], num_free) if ready and num_free else []
        numbers = {job.number for job in joined}
        worker.waiting = [one for one in worker.waiting if one[1].number not in numbers]
        worker.running += [(job, job.num_steps) for job in joined]
        if not worker.running:
            self._wake(now_s, worker)
            return
        worker.running = [(job, left - 1) for job, left in worker.running]
        self._at(now_s + self._costs([job.mask_share for job, _ in worker.running]), "step", worker)


def simulate_edits(
    jobs: Sequence[EditJob],
    fleet: EditFleet,
    route: EditRoute,
    join: JoinRule,
    costs: StepCosts,
    num_warm_up: int = 0,
) -> EditOutcome:
    """Simulate the edits; `join` selects edits for the batch of a worker.

    The first `num_warm_up` edits fill the workers with templates; their latencies are not counted.
    """
    simulation = _EditSimulation(fleet, route, join, costs)
    simulation.run(jobs)
    counted = sorted(jobs, key=lambda job: job.number)[num_warm_up:]
    return EditOutcome(tuple(simulation.done[job.number] for job in counted), simulation.num_loads)


MASKS = ((0.9, 7.3), (1.1, 4.7), (5.0, 9.3))
"""Beta distributions with the means of the three published workloads: production 0.11, public 0.19, try-on 0.35."""


def generate_edits(
    random: np.random.Generator, num_edits: int, rate_hz: float, *, num_templates: int = 970, zipf: float = 1.0
) -> list[EditJob]:
    """Poisson arrivals, masks of the three workloads in equal parts, templates by Zipf's law: all synthetic."""
    arrivals = random.exponential(1 / rate_hz, num_edits).cumsum()
    kinds = random.integers(0, len(MASKS), num_edits)
    shares = [float(np.clip(random.beta(*MASKS[kind]), 0.005, 1.0)) for kind in kinds]
    popularity = np.arange(1, num_templates + 1) ** -zipf
    templates = random.choice(num_templates, num_edits, p=popularity / popularity.sum())
    return list(map(EditJob, range(num_edits), arrivals.tolist(), shares, templates.tolist()))
