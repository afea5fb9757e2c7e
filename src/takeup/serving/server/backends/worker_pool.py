"""Backend with several worker processes, each with the model; requests survive the death of a worker.

How it works. A job is routed to the worker that has its LoRAs, unless it is busier than the others. A worker that dies
is restarted, and its jobs are retried elsewhere: jobs are idempotent, so the result is the same. A job that loses two
workers fails, because it may be the cause; a worker that dies three times before it is ready is not restarted.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Protocol

from takeup.errors import TakeupError
from takeup.serving.contract import Route
from takeup.serving.model import Expired
from takeup.serving.scheduling.routing import ROUTES
from takeup.serving.server.backends import Backend, ImageJob, JobHandle, ModelCard
from takeup.serving.server.errors import WorkerLost

if TYPE_CHECKING:
    from takeup.serving.diffusion.engine.steps import OnStep
    from takeup.serving.editing.contract import EditReport

# A worker process: runs one backend, controlled over a pipe -----------------------------------------------------------
#
# Protocol. To the worker: `start` (number, job), `cancel` (number), `forget` (LoRA or template), `pin` (LoRA, whether),
# `stop`.
# Back: `ready` (card) or `broken` (problem) once, then `step` (number, step, of how many), `made` (number, picture,
# report) or `failed` (number, problem), and `numbers` for monitoring. The worker exits when the pipe closes, so it does
# not outlive its server.

log = logging.getLogger("takeup.serving.server")


class BackendPlan(Protocol):
    """Builds a backend in the process that receives it."""

    def build(self) -> Backend:
        """Load the model."""


def serve_jobs(pipe: Connection, plan: BackendPlan) -> None:
    """Main function of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server says when it is over, not the terminal
    loop = _WorkerLoop(pipe)
    try:
        backend = plan.build()
    except TakeupError as problem:
        loop.send("broken", problem)
        return
    loop.send("ready", backend.card)
    try:
        loop.listen(backend)
    finally:
        if multiprocessing.parent_process() is not None:  # never ends a program that serves jobs in a thread
            hard_stop = threading.Timer(CLOSE_S, os._exit, [1])  # a thread may be stuck in a computation
            hard_stop.daemon = True
            hard_stop.start()
        backend.close()


class _WorkerLoop:
    """The pipe, and the handles of the running jobs."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._send_lock = threading.Lock()
        self._orders: dict[int, JobHandle] = {}

    def send(self, word: str, *facts: Any) -> None:
        """Send from any thread; ignored if the server has closed the pipe."""
        with self._send_lock, suppress(OSError):
            self._pipe.send((word, *facts))

    def listen(self, backend: Backend) -> None:
        """Carry out messages until the pipe closes."""
        while True:
            try:
                word, *facts = self._pipe.recv()
            except (EOFError, OSError):
                return
            if word == "stop":
                return
            if word == "start":
                self._start(backend, *facts)
            elif word == "cancel":
                self._cancel(*facts)
            elif word == "pin":
                backend.pin(facts[0], is_pinned=facts[1])
            else:
                backend.forget(*facts)

    def _start(self, backend: Backend, number: int, job: ImageJob) -> None:
        order = backend.start(job, lambda step, num_steps: self.send("step", number, step, num_steps))
        self._orders[number] = order
        order.done.add_done_callback(lambda _: self._ended(number, order, backend))

    def _cancel(self, number: int) -> None:
        order = self._orders.get(number)
        if order is not None:
            order.cancel()

    def _ended(self, number: int, order: JobHandle, backend: Backend) -> None:
        self._orders.pop(number, None)
        self.send("numbers", dict(backend.numbers()))
        problem = order.done.exception()
        if problem is None:
            self.send("made", number, order.done.result(), order.report)
        elif isinstance(problem, TakeupError):
            self.send("failed", number, problem)
        else:  # it may not survive the journey, and its inside is for the log
            log.error("a job failed", exc_info=problem)
            self.send("failed", number, RuntimeError(type(problem).__name__))


# The server's handle of one worker process: its state, its jobs, and a thread that reads its messages -----------------

MAX_KNOWN = 64
EXIT_S = 30.0
CLOSE_S = 20.0


@dataclass(frozen=True, slots=True)
class _AssignedJob:
    """A job of the worker, and the callback if the worker dies."""

    order: JobHandle
    on_dropped: Callable[[], None]


class WorkerHandle:
    """A process that was started just now. `startup_over` is set when it is ready or will never be."""

    def __init__(
        self, plan: BackendPlan, on_ready: Callable[[WorkerHandle], None], on_lost: Callable[[WorkerHandle], None]
    ) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would copy locks that are never released in the child
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve_jobs, args=(theirs, plan))
        self._process.start()
        theirs.close()
        self._on_ready, self._on_lost = on_ready, on_lost
        self._lock = threading.RLock()
        self._assigned: dict[int, _AssignedJob] = {}
        self._known: OrderedDict[str, None] = OrderedDict()
        self.numbers: Mapping[str, float] = {}
        self.card: ModelCard | None = None
        self.problem: TakeupError | None = None
        self.is_ready = self.was_ready = False
        self.startup_over = threading.Event()
        self._listener = threading.Thread(target=self._listen, name=f"worker-{self.pid}", daemon=True)
        self._listener.start()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def known(self) -> frozenset[str]:
        """LoRAs of recent jobs."""
        return frozenset(self._known)

    @property
    def num_tasks(self) -> int:
        return len(self._assigned)

    def take(self, number: int, order: JobHandle, job: ImageJob, on_dropped: Callable[[], None]) -> None:
        """Assign the job to this worker."""
        with self._lock:
            is_ready = self.is_ready
            if is_ready:
                self._assigned[number] = _AssignedJob(order, on_dropped)
                self._remember(job)
        if not is_ready:
            on_dropped()
            return
        order.on_cancel = lambda: self.send("cancel", number)
        self.send("start", number, job)
        if order.is_cancelled:
            self.send("cancel", number)

    def send(self, word: str, *facts: Any) -> None:
        """Send a message. Errors are ignored: the listening thread detects a dead worker."""
        with self._lock, suppress(OSError, ValueError):
            self._pipe.send((word, *facts))

    def close(self) -> None:
        """Stop the process; kill it if it still loads the model or does not stop in time."""
        self.is_ready = False
        self.send("stop")  # closing the pipe would not wake the thread that listens, so the worker would not notice
        if self.was_ready:
            self._process.join(EXIT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._listener.join()
        self._pipe.close()

    def _remember(self, job: ImageJob) -> None:
        for use in job.request.loras:
            self._known[use.name] = None
            self._known.move_to_end(use.name)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def _listen(self) -> None:
        while True:
            try:
                word, *facts = self._pipe.recv()
            except (EOFError, OSError):
                break
            getattr(self, f"_hear_{word}")(*facts)
        self._end()

    def _hear_ready(self, card: ModelCard) -> None:
        self.card = card
        self.is_ready = self.was_ready = True
        self._on_ready(self)
        self.startup_over.set()

    def _hear_broken(self, problem: TakeupError) -> None:
        self.problem = problem

    def _hear_numbers(self, numbers: Mapping[str, float]) -> None:
        self.numbers = numbers

    def _hear_step(self, number: int, step: int, num_steps: int) -> None:
        taken = self._assigned.get(number)
        if taken is not None:
            taken.order.on_step(step, num_steps)

    def _hear_made(self, number: int, picture: bytes, report: EditReport | None) -> None:
        with self._lock:
            taken = self._assigned.pop(number)
        taken.order.finish(picture, report)

    def _hear_failed(self, number: int, problem: BaseException) -> None:
        with self._lock:
            taken = self._assigned.pop(number)
        taken.order.fail(problem)

    def _end(self) -> None:
        """The process has ended: drop its jobs."""
        with self._lock:
            self.is_ready = False
            dropped, self._assigned = self._assigned, {}
        self._process.join()
        self._on_lost(self)
        for taken in dropped.values():
            taken.on_dropped()
        self.startup_over.set()


MAX_ATTEMPTS = 2
MAX_FALSE_STARTS = 3
Notify = Callable[[str], None]


@dataclass(slots=True, eq=False)
class _PoolTask:
    """A job and its number of attempts."""

    number: int
    order: JobHandle
    began_s: float = field(default_factory=time.monotonic)
    num_attempts: int = 0

    def job_now(self) -> ImageJob:
        """The job with its remaining time."""
        job = self.order.job
        return job if job.within_s is None else replace(job, within_s=self.began_s + job.within_s - time.monotonic())


class PoolBackend:
    """`num_workers` processes that build the same plan. Waits until all of them are ready."""

    def __init__(
        self, plan: BackendPlan, num_workers: int, report: Notify = lambda _: None, route: Route = ROUTES["affinity"]
    ) -> None:
        self._plan, self._report, self._route = plan, report, route
        self._lock = threading.RLock()
        self._numbers = itertools.count()
        self._waiting: deque[_PoolTask] = deque()
        self._totals: Counter[str] = Counter()
        self._false_starts: Counter[int] = Counter()
        self._closing = False
        self._pinned: set[str] = set()
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
        """LoRAs of all workers, as jobs are routed to the worker that has theirs."""
        return frozenset[str]().union(*(worker.known for worker in list(self._workers.values())))

    def start(self, job: ImageJob, on_step: OnStep) -> JobHandle:
        order = JobHandle(job, on_step)
        self._assign(_PoolTask(next(self._numbers), order))
        return order

    def forget(self, name: str) -> None:
        self._pinned.discard(name)
        for worker in list(self._workers.values()):
            worker.send("forget", name)

    def pin(self, name: str, *, is_pinned: bool) -> None:
        (self._pinned.add if is_pinned else self._pinned.discard)(name)
        for worker in list(self._workers.values()):
            worker.send("pin", name, is_pinned)

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
        for name in list(self._pinned):
            worker.send("pin", name, True)
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
        """Keep the task until a worker is ready; fail it if no worker is left."""
        if self._workers and not self._closing:
            self._waiting.append(task)
        else:
            task.order.fail(WorkerLost("no worker is left; try again later"))

    def _retry(self, task: _PoolTask) -> None:
        """Retry a task whose worker died."""
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
