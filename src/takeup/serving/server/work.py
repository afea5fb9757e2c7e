"""Work that was accepted: the jobs of one request, the places and adapters it holds, and its way through the gate."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Protocol

from takeup.serving.engines.diffusers.masked.editing import EditReport
from takeup.serving.model import Expired
from takeup.serving.server.board import Progress
from takeup.serving.server.errors import ApiError, api_error, body_of
from takeup.serving.server.gate import Gate, Place
from takeup.serving.server.jobs import Backend, Job
from takeup.serving.server.metrics import Metrics
from takeup.serving.server.shelf import Adapter


class Desk(Protocol):
    """What work needs of the service."""

    gate: Gate
    backend: Backend
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Made:
    """A picture, how long it waited for its turn, and what an edit did."""

    picture: bytes
    seed: int
    queued_s: float
    template: str | None = None
    report: EditReport | None = None


class Work:
    """Run it once, and close it whatever happens."""

    def __init__(
        self,
        desk: Desk,
        jobs: list[Job],
        progress: Progress,
        adapters: Sequence[Adapter],
        held: ExitStack,
        place: Place,
    ) -> None:
        self._desk, self._jobs, self._adapters, self._held, self._place = desk, jobs, adapters, held, place
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
        loras = tuple(use.name for use in job.request.loras)
        async with self._desk.gate.turn(loras, job.request.num_steps, until_s):
            queued_s = self.age_s
            metrics.queue_s.observe(queued_s)
            self.progress.tell("started", image=number)
            picture, report = await self._picture(number, self._as_it_is_now(job, until_s))
            metrics.image_s.observe(self.age_s - queued_s)
            metrics.images.inc()
        template = None if job.edit is None else job.edit.template
        return Made(picture, job.request.seed, queued_s, template, report)

    def _as_it_is_now(self, job: Job, until_s: float | None) -> Job:
        """The same job with the time that is left, and what those behind it want."""
        left_s = None if until_s is None else until_s - self._loop.time()
        if left_s is not None and left_s <= 0:
            raise Expired("the deadline passed while the request waited; allow more time")
        return replace(job, within_s=left_s, ahead=self._desk.gate.ahead)

    async def _picture(self, number: int, job: Job) -> tuple[bytes, EditReport | None]:
        def heard(step: int, num_steps: int) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._stepped, number, step, num_steps)

        order = self._desk.backend.start(job, heard)
        try:
            return await asyncio.wrap_future(order.done), order.report
        finally:
            order.cancel()

    def _stepped(self, number: int, step: int, num_steps: int) -> None:
        self._place.stepped()
        if not self.progress.is_over:
            self.progress.tell("image_generation.progress", image=number, step=step, steps=num_steps)

    def _in_the_words_of_the_client(self, problem: BaseException) -> ApiError:
        """The loader speaks of files; clients know adapters."""
        answer = api_error(problem)
        for adapter in self._adapters:
            answer.detail.message = answer.detail.message.replace(str(adapter.path), adapter.name)
        return answer
