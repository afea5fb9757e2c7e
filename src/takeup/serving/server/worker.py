"""A worker process: runs one backend, controlled over a pipe.

Protocol. To the worker: `start` (number, job), `cancel` (number), `forget` (LoRA or template), `stop`.
Back: `ready` (card) or `broken` (problem) once, then `step` (number, step, of how many), `made` (number, picture,
report) or `failed` (number, problem), and `numbers` for monitoring. The worker exits when the pipe closes, so it does
not outlive its server.
"""

from __future__ import annotations

import logging
import signal
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Protocol

from takeup.errors import TakeupError
from takeup.serving.server.jobs import Backend, ImageJob, JobHandle

log = logging.getLogger("takeup.serving.server")


class BackendPlan(Protocol):
    """Builds a backend, wherever it was sent."""

    def build(self) -> Backend:
        """Load the model."""


def serve_jobs(line: Connection, plan: BackendPlan) -> None:
    """The life of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server says when it is over, not the terminal
    desk = _WorkerLoop(line)
    try:
        backend = plan.build()
    except TakeupError as problem:
        desk.send("broken", problem)
        return
    desk.send("ready", backend.card)
    try:
        desk.listen(backend)
    finally:
        backend.close()


class _WorkerLoop:
    """What the process holds: the line, and the orders that are on their way."""

    def __init__(self, line: Connection) -> None:
        self._pipe = line
        self._send_lock = threading.Lock()
        self._orders: dict[int, JobHandle] = {}

    def send(self, word: str, *facts: Any) -> None:
        """From any thread; a server that is gone hears nothing."""
        with self._send_lock, suppress(OSError):
            self._pipe.send((word, *facts))

    def listen(self, backend: Backend) -> None:
        """Do what is said until the line closes."""
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
