"""A replica of Ray Serve: a backend inside an actor. Imports nothing heavy, so a new one is there in a moment."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

from takeup.errors import TakeupError
from takeup.serving.server.jobs import Backend, ImageJob, JobHandle, ModelCard
from takeup.serving.server.worker import BackendPlan

ReplicaEvent = tuple[str, Any]


class Replica:
    """A backend inside an actor of Ray."""

    def __init__(self, plan: BackendPlan) -> None:
        self._backend: Backend = plan.build()

    def card(self) -> ModelCard:
        """The model."""
        return self._backend.card

    def forget(self, name: str) -> None:
        """Drop this LoRA or template from caches; it will not be requested again."""
        self._backend.forget(name)

    def make(self, job: ImageJob) -> Iterator[ReplicaEvent]:
        """Yield steps, then the image or the error; closing the generator cancels the job."""
        said: queue.SimpleQueue[ReplicaEvent] = queue.SimpleQueue()
        order = self._backend.start(job, lambda step, num_steps: said.put(("step", (step, num_steps))))
        order.done.add_done_callback(lambda _: said.put(_outcome(order)))
        try:
            word = ""
            while word not in ("made", "failed"):
                word, fact = said.get()
                yield word, fact
        finally:
            order.cancel()


def _outcome(order: JobHandle) -> ReplicaEvent:
    problem = order.done.exception()
    if problem is None:
        return "made", (order.done.result(), order.report)
    return "failed", problem if isinstance(problem, TakeupError) else RuntimeError(type(problem).__name__)
