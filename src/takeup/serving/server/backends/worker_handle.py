"""A worker process that runs one backend, and the server's handle of it: the two ends of a pipe."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, Protocol

from takeup.errors import TakeupError
from takeup.serving.server.backends import Backend, ImageJob, JobHandle, ModelCard

if TYPE_CHECKING:
    from takeup.serving.editing.masked.edit_state import EditReport


# A worker process: runs one backend, controlled over a pipe -----------------------------------------------------------
#
# Protocol. To the worker: `start` (number, job), `cancel` (number), `forget` (LoRA or template), `stop`.
# Back: `ready` (card) or `broken` (problem) once, then `step` (number, step, of how many), `made` (number, picture,
# report) or `failed` (number, problem), and `numbers` for monitoring. The worker exits when the pipe closes, so it does
# not outlive its server.

log = logging.getLogger("takeup.serving.server")


class BackendPlan(Protocol):
    """Builds a backend, wherever it was sent."""

    def build(self) -> Backend:
        """Load the model."""


def serve_jobs(pipe: Connection, plan: BackendPlan) -> None:
    """The life of the process."""
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
        backend.close()


class _WorkerLoop:
    """What the process holds: the pipe, and the handles of its running jobs."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._send_lock = threading.Lock()
        self._orders: dict[int, JobHandle] = {}

    def send(self, word: str, *facts: Any) -> None:
        """From any thread; a server that is gone hears nothing."""
        with self._send_lock, suppress(OSError):
            self._pipe.send((word, *facts))

    def listen(self, backend: Backend) -> None:
        """Do what is said until the pipe closes."""
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


# One worker process as the server sees it: whether it lives, what it is making, and a thread that hears it ------------

MAX_KNOWN = 64
EXIT_S = 30.0


@dataclass(frozen=True, slots=True)
class _AssignedJob:
    """An order that the worker is making, and what to do if the worker dies."""

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
        """LoRAs it was asked for of late."""
        return frozenset(self._known)

    @property
    def num_tasks(self) -> int:
        return len(self._assigned)

    def take(self, number: int, order: JobHandle, job: ImageJob, on_dropped: Callable[[], None]) -> None:
        """Make this picture."""
        with self._lock:
            if not self.is_ready:
                gone = True
            else:
                gone = False
                self._assigned[number] = _AssignedJob(order, on_dropped)
                self._remember(job)
        if gone:
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
        """Let the process end by itself, or end it. One that still loads the model has nothing to put away."""
        self.is_ready = False
        self.send("stop")  # closing the pipe would not wake the thread that listens, so the worker would not notice
        if self.was_ready:
            self._process.join(EXIT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._listener.join()
        self._pipe.close()

    # ---------------------------------------------------------------------------------------------------------------

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
        """The process is gone: whatever it was making is dropped."""
        with self._lock:
            self.is_ready = False
            dropped, self._assigned = self._assigned, {}
        self._process.join()
        self._on_lost(self)
        for taken in dropped.values():
            taken.on_dropped()
        self.startup_over.set()
