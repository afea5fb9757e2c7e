"""Work that was accepted: the jobs of one request, the places and adapters it holds, and its way through the gate."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Protocol

from takeup.serving.model import Expired
from takeup.serving.server.board import Progress
from takeup.serving.server.errors import ApiError, api_error, body_of
from takeup.serving.server.gate import Gate
from takeup.serving.server.jobs import Backend, Job
from takeup.serving.server.metrics import Metrics
from takeup.serving.server.shelf import Adapter

__all__ = ["Desk", "Made", "Work"]


class Desk(Protocol):
    """What work needs of the service."""

    gate: Gate
    backend: Backend
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Made:
    """A picture, and how long it waited for its turn."""

    picture: bytes
    seed: int
    queued_s: float


class Work:
    """Run it once, and close it whatever happens."""

    def __init__(
        self, desk: Desk, jobs: list[Job], progress: Progress, adapters: Sequence[Adapter], held: ExitStack
    ) -> None:
        self._desk, self._jobs, self._adapters, self._held = desk, jobs, adapters, held
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self.progress = progress
        progress.tell("queued", images=len(jobs))

    @property
    def age_s(self) -> float:
        """Since it was accepted."""
        return self._loop.time() - self._began_s

    async def run(self) -> list[Made]:
        """All pictures, in order. The first failure ends the others too."""
        tasks = [asyncio.create_task(self._make(number, job)) for number, job in enumerate(self._jobs)]
        try:
            made = await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            self.progress.tell("cancelled")
            raise
        except Exception as problem:
            answer = self._in_the_words_of_the_client(problem)
            self.progress.tell("error", **body_of(answer))
            raise answer from problem
        finally:
            for task in tasks:
                task.cancel()
        self._desk.metrics.request_s.observe(self.age_s)
        self.progress.tell("done", images=len(made))
        return made

    def close(self) -> None:
        """Give back places and adapters."""
        self.progress.end()
        self._held.close()

    async def _make(self, number: int, job: Job) -> Made:
        metrics = self._desk.metrics
        until_s = None if job.within_s is None else self._began_s + job.within_s
        async with self._desk.gate.turn(until_s):
            queued_s = self.age_s
            metrics.queue_s.observe(queued_s)
            self.progress.tell("started", image=number)
            picture = await self._picture(number, self._within(job, until_s))
            metrics.image_s.observe(self.age_s - queued_s)
            metrics.images.inc()
        return Made(picture, job.request.seed, queued_s)

    def _within(self, job: Job, until_s: float | None) -> Job:
        """The same job with the time that is left."""
        if until_s is None:
            return job
        left_s = until_s - self._loop.time()
        if left_s <= 0:
            raise Expired("the deadline passed while the request waited; allow more time")
        return replace(job, within_s=left_s)

    async def _picture(self, number: int, job: Job) -> bytes:
        def heard(step: int, num_steps: int) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._stepped, number, step, num_steps)

        order = self._desk.backend.start(job, heard)
        try:
            return await asyncio.wrap_future(order.done)
        finally:
            order.cancel()

    def _stepped(self, number: int, step: int, num_steps: int) -> None:
        if not self.progress.is_over:
            self.progress.tell("image_generation.progress", image=number, step=step, steps=num_steps)

    def _in_the_words_of_the_client(self, problem: BaseException) -> ApiError:
        """The loader speaks of files; clients know adapters."""
        answer = api_error(problem)
        for adapter in self._adapters:
            answer.detail.message = answer.detail.message.replace(str(adapter.path), adapter.name)
        return answer
