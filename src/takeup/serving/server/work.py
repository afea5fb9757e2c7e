"""Work that was accepted: the jobs of one request, the places and adapters it holds, and its way through the gate."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Protocol

from takeup.serving.engines.diffusers.masked.editing import EditReport
from takeup.serving.model import Expired
from takeup.serving.server.board import RequestProgress
from takeup.serving.server.errors import ApiError, api_error, body_of
from takeup.serving.server.gate import AdmissionQueue, Reservation
from takeup.serving.server.jobs import Backend, ImageJob
from takeup.serving.server.metrics import ServerMetrics
from takeup.serving.server.shelf import RegisteredAdapter


class ServiceParts(Protocol):
    """What work needs of the service."""

    admission_queue: AdmissionQueue
    backend: Backend
    metrics: ServerMetrics


@dataclass(frozen=True, slots=True)
class FinishedImage:
    """A picture, how long it waited for its turn, and what an edit did."""

    picture: bytes
    seed: int
    queued_s: float
    template: str | None = None
    report: EditReport | None = None


class AcceptedRequest:
    """Run it once, and close it whatever happens."""

    def __init__(
        self,
        desk: ServiceParts,
        jobs: list[ImageJob],
        progress: RequestProgress,
        adapters: Sequence[RegisteredAdapter],
        held: ExitStack,
        place: Reservation,
    ) -> None:
        self._service, self._jobs, self._adapters, self._held, self._reservation = desk, jobs, adapters, held, place
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self.progress = progress
        progress.publish("queued", images=len(jobs))

    @property
    def age_s(self) -> float:
        """Since it was accepted."""
        return self._loop.time() - self._began_s

    async def run(self) -> list[FinishedImage]:
        """All pictures, in order. The first failure ends the others too."""
        tasks = [asyncio.create_task(self._make(number, job)) for number, job in enumerate(self._jobs)]
        try:
            made = await asyncio.gather(*tasks)
        except asyncio.CancelledError:
            self.progress.publish("cancelled")
            raise
        except Exception as problem:
            answer = self._client_error(problem)
            self.progress.publish("error", **body_of(answer))
            raise answer from problem
        finally:
            for task in tasks:
                task.cancel()
        self._service.metrics.request_s.observe(self.age_s)
        self.progress.publish("done", images=len(made))
        return made

    def close(self) -> None:
        """Give back places and adapters."""
        self.progress.end()
        self._held.close()

    async def _make(self, number: int, job: ImageJob) -> FinishedImage:
        metrics = self._service.metrics
        until_s = None if job.within_s is None else self._began_s + job.within_s
        loras = tuple(use.name for use in job.request.loras)
        async with self._service.admission_queue.slot(loras, job.request.num_steps, until_s):
            queued_s = self.age_s
            metrics.queue_s.observe(queued_s)
            self.progress.publish("started", image=number)
            picture, report = await self._picture(number, self._with_time_left(job, until_s))
            metrics.image_s.observe(self.age_s - queued_s)
            metrics.images.inc()
        template = None if job.edit is None else job.edit.template
        return FinishedImage(picture, job.request.seed, queued_s, template, report)

    def _with_time_left(self, job: ImageJob, until_s: float | None) -> ImageJob:
        """The same job with the time that is left, and what those behind it want."""
        left_s = None if until_s is None else until_s - self._loop.time()
        if left_s is not None and left_s <= 0:
            raise Expired("the deadline passed while the request waited; allow more time")
        return replace(job, within_s=left_s, ahead=self._service.admission_queue.ahead)

    async def _picture(self, number: int, job: ImageJob) -> tuple[bytes, EditReport | None]:
        def heard(step: int, num_steps: int) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._stepped, number, step, num_steps)

        order = self._service.backend.start(job, heard)
        try:
            return await asyncio.wrap_future(order.done), order.report
        finally:
            order.cancel()

    def _stepped(self, number: int, step: int, num_steps: int) -> None:
        self._reservation.record_step()
        if not self.progress.is_over:
            self.progress.publish("image_generation.progress", image=number, step=step, steps=num_steps)

    def _client_error(self, problem: BaseException) -> ApiError:
        """The loader speaks of files; clients know adapters."""
        answer = api_error(problem)
        for adapter in self._adapters:
            answer.detail.message = answer.detail.message.replace(str(adapter.path), adapter.name)
        return answer
