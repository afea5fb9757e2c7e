"""Backend with several worker processes, each with the model; requests survive the death of a worker.

How it works. A job is routed to the worker that has its LoRAs, unless it is busier than the others. A worker that dies
is restarted, and its jobs are retried elsewhere: jobs are idempotent, so the result is the same. A job that loses two
workers fails, because it may be the cause; a worker that dies three times before it is ready is not restarted.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from takeup.errors import TakeupError
from takeup.serving.contract import Route
from takeup.serving.model import Expired
from takeup.serving.scheduling.routing import ROUTES
from takeup.serving.server.backends import ImageJob, JobHandle, ModelCard
from takeup.serving.server.backends.worker_handle import BackendPlan, WorkerHandle
from takeup.serving.server.errors import WorkerLost

if TYPE_CHECKING:
    from takeup.serving.diffusion.engine.steps import OnStep


MAX_ATTEMPTS = 2
MAX_FALSE_STARTS = 3
Notify = Callable[[str], None]


@dataclass(slots=True, eq=False)
class _PoolTask:
    """An order, and which try this is."""

    number: int
    order: JobHandle
    began_s: float = field(default_factory=time.monotonic)
    num_attempts: int = 0

    def job_now(self) -> ImageJob:
        """The job, with the time that is left."""
        job = self.order.job
        return job if job.within_s is None else replace(job, within_s=self.began_s + job.within_s - time.monotonic())


class PoolBackend:
    """`num_workers` processes that build the same plan. Waits until all of them are ready."""

    def __init__(
        self,
        plan: BackendPlan,
        num_workers: int,
        report: Notify = lambda _: None,
        route: Route = ROUTES["affinity"],
    ) -> None:
        self._plan, self._report, self._route = plan, report, route
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._waiting: deque[_PoolTask] = deque()
        self._totals: Counter[str] = Counter()
        self._false_starts: Counter[int] = Counter()
        self._closing = False
        self._card: ModelCard | None = None
        self._problem: TakeupError | None = None
        self._workers = {slot: self._start_worker(slot) for slot in range(num_workers)}
        self._wait_until_ready()

    @property
    def card(self) -> ModelCard:
        assert self._card is not None
        return self._card

    @property
    def is_ready(self) -> bool:
        return any(worker.is_ready for worker in self._workers.values()) and not self._closing

    @property
    def pids(self) -> list[int]:
        """The processes that can take jobs."""
        return [worker.pid for worker in self._workers.values() if worker.is_ready]

    @property
    def loras(self) -> frozenset[str]:
        """What one worker has is as good as what all have: jobs go where their LoRAs are."""
        return frozenset[str]().union(*(worker.known for worker in list(self._workers.values())))

    def start(self, job: ImageJob, on_step: OnStep) -> JobHandle:
        order = JobHandle(job, on_step)
        self._assign(_PoolTask(next(self._numbers), order))
        return order

    def forget(self, name: str) -> None:
        for worker in list(self._workers.values()):
            worker.send("forget", name)

    def numbers(self) -> Mapping[str, float]:
        with self._lock:
            totals = Counter(self._totals)
            workers = list(self._workers.values())
        for worker in workers:
            totals.update(worker.numbers)
        return {**totals, "workers": sum(worker.is_ready for worker in workers)}

    def close(self) -> None:
        self._closing = True
        for worker in list(self._workers.values()):
            worker.close()
        for task in self._waiting:
            task.order.fail(WorkerLost("the server was stopped"))

    # ---------------------------------------------------------------------------------------------------------------

    def _start_worker(self, slot: int) -> WorkerHandle:
        return WorkerHandle(
            self._plan, on_ready=self._on_worker_ready, on_lost=lambda worker: self._on_worker_lost(slot, worker)
        )

    def _wait_until_ready(self) -> None:
        while starting := [worker for worker in list(self._workers.values()) if not worker.is_ready]:
            starting[0].startup_over.wait()  # ready, or replaced by another one, or given up
        if self._problem is not None or not self.is_ready:
            self.close()
            raise self._problem or WorkerLost("no worker could be started; the log says why")

    def _on_worker_ready(self, worker: WorkerHandle) -> None:
        """In the thread that listens to the worker."""
        self._card = worker.card
        self._report(f"worker {worker.pid} is ready")
        with self._lock:
            waiting, self._waiting = self._waiting, deque()
        for task in waiting:
            self._assign(task)

    def _assign(self, task: _PoolTask) -> None:
        with self._lock:
            ready = [worker for worker in self._workers.values() if worker.is_ready]
            if not ready:
                self._enqueue(task)
                return
            loras = [use.name for use in task.order.job.request.loras]
            worker = ready[self._route(loras, [one.known for one in ready], [one.num_tasks for one in ready])]
            task.num_attempts += 1
            worker.take(task.number, task.order, task.job_now(), on_dropped=lambda: self._retry(task))

    def _enqueue(self, task: _PoolTask) -> None:
        """Until a worker is ready, if there will ever be one."""
        if self._workers and not self._closing:
            self._waiting.append(task)
        else:
            task.order.fail(WorkerLost("no worker is left; try again later"))

    def _retry(self, task: _PoolTask) -> None:
        """Its worker died."""
        left_s = task.job_now().within_s
        if self._closing or task.order.is_cancelled:
            task.order.fail(WorkerLost("the server was stopped"))
        elif task.num_attempts >= MAX_ATTEMPTS:
            task.order.fail(
                WorkerLost(f"{task.num_attempts} workers died while they made this image; change the request")
            )
        elif left_s is not None and left_s <= 0:
            task.order.fail(Expired("the deadline passed, for a worker died; allow more time"))
        else:
            self._totals["retries"] += 1
            self._assign(task)

    def _on_worker_lost(self, slot: int, worker: WorkerHandle) -> None:
        """In the thread that listened to the worker, which is gone."""
        with self._lock:
            self._totals.update({name: value for name, value in worker.numbers.items() if name != "adapter_bytes"})
            self._false_starts[slot] = 0 if worker.was_ready else self._false_starts[slot] + 1
            if self._closing:
                return
            if worker.problem is not None or self._false_starts[slot] >= MAX_FALSE_STARTS:
                self._problem = worker.problem
                del self._workers[slot]
                self._report(f"worker {worker.pid} could not start; it is not started again")
                return
            self._report(f"worker {worker.pid} died; another one is started")
            self._totals["worker_restarts"] += 1
            self._workers[slot] = self._start_worker(slot)
