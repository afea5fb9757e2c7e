"""When datasets will probably be read next, from the jobs so far: what the Spark plug-in knows without a profile.

The twin of `native/spark/src/main/java/io/takeup/spark/Expectations.java`. Spark announces no job before the one that
runs. In a loop every round makes datasets of the same kinds, and what happened to those of the rounds before will
happen to the next. Without such a precedent, a dataset that was never read is expected in the next job; one that was
read is expected again after as many jobs as last time, until twice that has passed. The first time counts from the job
that made it, and there is no second time if another dataset of the same kind has been made since.

Which blocks tasks read does not depend on the policy, so all of it is known before a workload is simulated.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from takeup.caching.model import Task, Workload

PATIENCE_JOBS = 3
NUM_PRECEDENTS = 4
SHARE_OF_LAST_JOB = 0.3  # in the running average of the bytes of a job
ANYWHERE = (0.0, 1.0)

Reading = tuple[float, float]  # from where to where in the job, as shares of it
Expected = tuple[
    int, float | None, int
]  # block, position, and stages from now; no position: it is not expected any more


@dataclass(slots=True)
class _History:
    """The life of one dataset; ages are in jobs since the one that made it."""

    blocks: list[int]
    first_job: int
    precedents: list[_History]  # youngest first
    last_job: int
    gap: int = 1
    readings: dict[int, Reading] = field(default_factory=dict)
    is_expected: bool = False
    is_over: bool = False
    has_successor: bool = False


class Expectations:
    """Follows the jobs of one application."""

    def __init__(self, workload: Workload, kinds: Sequence[str]) -> None:
        self.workload, self.kinds = workload, kinds
        self.positions = [*workload.positions_bytes().tolist()]
        self.blocks: defaultdict[int, list[int]] = defaultdict(list)
        for block, dataset in enumerate(workload.block_dataset.tolist()):
            self.blocks[dataset].append(block)
        self.alive: dict[int, _History] = {}
        self.of_kind: defaultdict[tuple[str, int], list[_History]] = defaultdict(list)
        self.job = 0
        self.average_bytes = 0.0

    def by_job(self) -> dict[int, list[Expected]]:
        """By job, what is expected from its start on."""
        jobs = list(self.workload.tasks_by_job().items())
        starts = [self.positions[tasks[0].index] for _, tasks in jobs]
        ends = [*starts[1:], max(self.positions, default=0)]
        return {
            job: list(self._begin(tasks, start, max(1.0, end - start)))
            for (job, tasks), start, end in zip(jobs, starts, ends, strict=True)
        }

    def _begin(self, tasks: Sequence[Task], start: float, job_bytes: float) -> Iterator[Expected]:
        self._forget_before(tasks[0].index)
        readings = self._readings(tasks, start, job_bytes)
        made = [self._dataset(block) for task in tasks for block in task.outputs]
        num_of_kind: defaultdict[str, int] = defaultdict(int)
        for dataset in dict.fromkeys([*readings, *made]):
            if dataset >= 0:
                self._seen(dataset, num_of_kind, readings.get(dataset))
        old = self.average_bytes
        self.average_bytes = (1 - SHARE_OF_LAST_JOB) * old + SHARE_OF_LAST_JOB * job_bytes if old else job_bytes
        for history in self.alive.values():
            yield from self._announce(history, start + job_bytes)
        self.job += 1

    def _dataset(self, block: int) -> int:
        return int(self.workload.block_dataset[block])

    def _forget_before(self, task: int) -> None:
        """Datasets that were unpersisted by then."""
        for dataset, history in list(self.alive.items()):
            if all(self.workload.block_ends[block] <= task for block in history.blocks):
                history.is_over = True
                del self.alive[dataset]

    def _readings(self, tasks: Sequence[Task], start: float, job_bytes: float) -> dict[int, Reading]:
        """Where in the job each dataset is read, by the first stage that reads it."""
        readings: dict[int, tuple[int, float, float]] = {}
        for task in tasks:
            where = (self.positions[task.index] - start) / job_bytes
            for dataset in {self._dataset(block) for block in task.inputs}:
                stage, first, last = readings.get(dataset, (task.stage, where, where))
                if stage == task.stage:
                    readings[dataset] = stage, min(first, where), max(last, where)
        return {dataset: (first, last) for dataset, (_, first, last) in readings.items()}

    def _seen(self, dataset: int, num_of_kind: defaultdict[str, int], reading: Reading | None) -> None:
        history = self.alive.get(dataset)
        if history is None:
            num_of_kind[self.kinds[dataset]] += 1
            history = self.alive[dataset] = self._make(dataset, num_of_kind[self.kinds[dataset]])
        if reading is None:
            return
        age = self.job - history.first_job
        if self._knows(history, age) and self._precedent(history, age) is None:
            history.precedents.clear()  # it goes its own way
        history.gap = max(1, self.job - history.last_job)
        history.last_job = self.job
        history.readings[age] = reading

    def _make(self, dataset: int, number: int) -> _History:
        earlier = self.of_kind[self.kinds[dataset], number]
        history = _History(self.blocks[dataset], self.job, list(earlier), self.job)
        for last in earlier[:1]:
            last.has_successor = True
        earlier.insert(0, history)
        for old in earlier[NUM_PRECEDENTS:]:
            old.precedents.clear()
        del earlier[NUM_PRECEDENTS:]
        return history

    def _announce(self, history: _History, end: float) -> Iterator[Expected]:
        num_jobs = self._jobs_until_next(history)
        was_expected, history.is_expected = history.is_expected, num_jobs >= 0
        if num_jobs < 0:
            yield from ((block, None, 0) for block in history.blocks if was_expected)
            return
        first, last = self._precedent(history, self.job - history.first_job + 1 + num_jobs) or ANYWHERE
        start = end + (num_jobs + first) * self.average_bytes
        step = (last - first) * self.average_bytes / len(history.blocks)
        for place, block in enumerate(history.blocks):
            yield block, start + place * step, 1 + num_jobs

    def _jobs_until_next(self, history: _History) -> int:
        """How many jobs lie between this one and the next reader; -1 if none is expected."""
        age = self.job - history.first_job
        for num_jobs in range(NUM_PRECEDENTS):
            if not self._knows(history, age + 1 + num_jobs):
                guess = self._guessed(history)
                return -1 if guess < 0 else max(num_jobs, guess)
            if self._precedent(history, age + 1 + num_jobs) is not None:
                return num_jobs
        return -1

    def _knows(self, history: _History, age: int) -> bool:
        """Whether a dataset of the same kind was that old, or did not live to be."""
        return any(old.is_over or self.job - old.first_job >= age for old in history.precedents)

    def _precedent(self, history: _History, age: int) -> Reading | None:
        """How the youngest of the same kind that was that old was read at that age; None if it was not."""
        known = (old for old in history.precedents if old.is_over or self.job - old.first_job >= age)
        old = next(known, None)
        return None if old is None else old.readings.get(age)

    def _guessed(self, history: _History) -> int:
        """Without a precedent."""
        if not history.readings:
            return 0 if self.job - history.first_job <= PATIENCE_JOBS else -1
        num_idle = self.job - history.last_job
        was_read_once = bool(history.precedents) and len(history.precedents[0].readings) == 1
        is_used_up = len(history.readings) == 1 and (history.has_successor or was_read_once)
        return -1 if num_idle > 2 * history.gap or is_used_up else max(0, history.gap - num_idle - 1)


def expected_by_job(workload: Workload, kinds: Sequence[str]) -> Mapping[int, list[Expected]]:
    """By job, what the plug-in expects from its start on; `kinds` names the kind of every dataset."""
    return Expectations(workload, kinds).by_job()
