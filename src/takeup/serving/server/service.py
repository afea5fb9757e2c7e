"""The service: from a tenant's request to its images, independent of HTTP. It holds what all requests share."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace

from takeup.serving.editing.contract import EditReport
from takeup.serving.model import ControlUse, Expired, LoraUse, Request
from takeup.serving.scheduling.adapters import usual_bound
from takeup.serving.server.adapter_registry import AdapterRegistry, RegisteredAdapter
from takeup.serving.server.admission import Reservation
from takeup.serving.server.backends import Backend, ImageJob
from takeup.serving.server.errors import ApiError, api_error, body_of
from takeup.serving.server.image_codec import EditFiles, EditInputs, image_from_base64, image_from_bytes
from takeup.serving.server.jobs import ExpiringFiles, Jobs
from takeup.serving.server.metrics import ServerMetrics
from takeup.serving.server.progress_hub import ProgressHub, RequestProgress
from takeup.serving.server.schemas import MAX_IMAGES, ControlNetSelection, EditForm, ImageRequestBody
from takeup.serving.server.settings import ServerSettings

# An accepted request: its jobs, the reservation and adapters it holds, and its way through the admission queue -------


@dataclass(frozen=True, slots=True)
class FinishedImage:
    """An image, its time in the queue, and the report of an edit."""

    picture: bytes
    seed: int
    queued_s: float
    template: str | None = None
    report: EditReport | None = None


class AcceptedRequest:
    """An accepted request: call `run` once, and `close` in any case."""

    def __init__(
        self,
        service: Service,
        jobs: list[ImageJob],
        tenant: str,
        progress: RequestProgress,
        adapters: Sequence[RegisteredAdapter],
        held: ExitStack,
        reservation: Reservation,
    ) -> None:
        self._tenant = tenant
        self._service, self._jobs, self._adapters, self._held, self._reservation = (
            service,
            jobs,
            adapters,
            held,
            reservation,
        )
        self._tasks: list[asyncio.Task[FinishedImage]] = []
        self._is_stopped = False
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self.progress = progress
        progress.publish("queued", images=len(jobs))

    @property
    def age_s(self) -> float:
        """Seconds since it was accepted."""
        return self._loop.time() - self._began_s

    async def run(self) -> list[FinishedImage]:
        """All images, in order. The first failure cancels the others."""
        self._tasks = [asyncio.create_task(self._make(number, job)) for number, job in enumerate(self._jobs)]
        try:
            made = await asyncio.gather(*self._tasks)
        except asyncio.CancelledError:
            if self._is_stopped:
                self.progress.publish("error", **body_of(stopping()))
                raise stopping() from None
            self.progress.publish("cancelled")
            raise
        except Exception as problem:
            answer = self._client_error(problem)
            self.progress.publish("error", **body_of(answer))
            raise answer from problem
        finally:
            for task in self._tasks:
                task.cancel()
        self._service.metrics.request_s.observe(self.age_s)
        self.progress.publish("done", images=len(made))
        return made

    def stop(self) -> None:
        """End it with an error because the server stops."""
        self._is_stopped = True
        for task in self._tasks:
            task.cancel()

    def close(self) -> None:
        """Release its reservation and adapters."""
        self._service.works.discard(self)
        self.progress.end()
        self._held.close()

    async def _make(self, number: int, job: ImageJob) -> FinishedImage:
        metrics = self._service.metrics
        until_s = None if job.within_s is None else self._began_s + job.within_s
        loras = tuple(use.name for use in job.request.loras)
        async with self._service.admission_queue.slot(loras, job.request.num_steps, until_s, self._tenant):
            queued_s = self.age_s
            metrics.queue_s.observe(queued_s)
            self.progress.publish("started", image=number)
            picture, report = await self._picture(number, self._with_time_left(job, until_s))
            metrics.image_s.observe(self.age_s - queued_s)
            metrics.images.inc()
        template = None if job.edit is None else job.edit.template
        return FinishedImage(picture, job.request.seed, queued_s, template, report)

    def _with_time_left(self, job: ImageJob, until_s: float | None) -> ImageJob:
        """The job with its remaining time, and the LoRAs of the jobs that wait behind it."""
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
        """Convert an error of the loader, which names files, to one that names adapters."""
        answer = api_error(problem)
        for adapter in self._adapters:
            answer.detail.message = answer.detail.message.replace(str(adapter.path), adapter.name)
        return answer


# The service: from what a tenant asks to pictures. It holds all that requests share, and knows nothing of HTTP --------

SEEDS = 2**32 - MAX_IMAGES
MAX_ENLARGEMENT = 16


@dataclass(frozen=True, slots=True)
class Caller:
    """The tenant and the request id."""

    tenant: str
    request: str


class Service:
    """What all requests share; create it inside a running event loop."""

    def __init__(self, settings: ServerSettings, backend: Backend, tenants: Collection[str] = ()) -> None:
        limits = settings.limits
        self.settings, self.backend = settings, backend
        self.started_s = time.time()
        self.admission_queue = settings.rules.admission_queue(
            limits.max_running, limits.max_waiting, lambda: backend.loras, tenants
        )
        self.progress_hub = ProgressHub()
        self.metrics = ServerMetrics(self.admission_queue, backend)
        targets = backend.card.targets
        self.adapter_registry = AdapterRegistry(
            settings.uploads, settings.adapters, targets, backend.forget, limits.max_adapters
        )
        self.edit_inputs = EditInputs(settings.templates or settings.uploads / ".templates", limits, backend.forget)
        self.threads = ThreadPoolExecutor(2, thread_name_prefix="files")
        self.files, self.jobs = ExpiringFiles(), Jobs(settings.webhooks)
        self.is_stopping = False
        self.works: set[AcceptedRequest] = set()

    @property
    def is_ready(self) -> bool:
        return self.backend.is_ready and not self.is_stopping

    async def accept(self, caller: Caller, asked: ImageRequestBody, files: EditFiles | None = None) -> AcceptedRequest:
        """Validate the request, reserve queue capacity and hold its adapters. The caller must close the work."""
        self._check_ready()
        self._check_model(asked.model)
        self._check_size(asked)
        self.jobs.check(asked.webhook)
        asked.ignore(self._without_effect(asked))
        num_steps = asked.steps or self.backend.card.num_steps
        with ExitStack() as held:
            reservation = held.enter_context(
                self.admission_queue.reserve(asked.n, num_steps, asked.deadline_s or math.inf, caller.tenant)
            )
            names = _names(asked)
            adapters = held.enter_context(self.adapter_registry.hold(caller.tenant, names, "loras"))
            jobs = await self._jobs(caller.tenant, asked, adapters, files)
            self._check_ready()  # the signal to stop may have arrived while files were read
            progress = self.progress_hub.open(caller.tenant, caller.request)
            work = AcceptedRequest(self, jobs, caller.tenant, progress, adapters, held.pop_all(), reservation)
            self.works.add(work)
            return work

    async def run_in_thread(self, act: object, *arguments: object) -> object:
        """Run blocking file work in a thread, off the event loop."""
        assert callable(act)
        return await asyncio.get_running_loop().run_in_executor(self.threads, act, *arguments)

    def close(self) -> None:
        """Accept nothing more, and end running jobs."""
        self.is_stopping = True
        self.jobs.close()
        self.threads.shutdown(cancel_futures=True)
        self.backend.close()

    def _check_ready(self) -> None:
        if self.is_stopping:
            raise stopping()
        if not self.is_ready:
            message = "the server is starting or broken; try again later"
            raise ApiError(503, message, kind="server_error", code="not_ready", headers={"Retry-After": "5"})

    def _check_model(self, model: str | None) -> None:
        if model not in (None, "", self.settings.model):
            message = f"the model {model!r} is not served here; this is {self.settings.model!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def _without_effect(self, asked: ImageRequestBody) -> list[str]:
        """The fields that this model does not use."""
        card = self.backend.card
        needed = getattr(asked, card.negative_needs)
        given = getattr(card, card.negative_needs) if needed is None else needed
        return [*card.unused, *(["negative_prompt"] if given <= 1 else [])]

    @property
    def max_pixels(self) -> int:
        """Most pixels of an image: cost grows with their square, and models fail far above their usual size."""
        most, usual = self.settings.limits.max_output_pixels, self.backend.card.usual_pixels
        return min(most, MAX_ENLARGEMENT * usual) if usual else most

    def _check_size(self, asked: ImageRequestBody) -> None:
        most = self.max_pixels
        if asked.size_px is not None and math.prod(asked.size_px) > most:
            message = f"the size {asked.size} is above the limit of {most} pixels; ask for a smaller image"
            raise ApiError(400, message, param="size", code="invalid_size")

    async def _jobs(
        self, tenant: str, asked: ImageRequestBody, adapters: list[RegisteredAdapter], files: EditFiles | None
    ) -> list[ImageJob]:
        controls = tuple([await self._control(one, number) for number, one in enumerate(asked.controls)])
        edit, references = None, tuple[object, ...]()
        if files is not None:
            references = await self._references(files)
            assert isinstance(asked, EditForm)
            edit = await asyncio.get_running_loop().run_in_executor(
                self.threads, self.edit_inputs.edit, tenant, asked, files, self.max_pixels
            )
        first = secrets.randbelow(SEEDS) if asked.seed is None else asked.seed
        return [
            ImageJob(
                request=replace(self._request(asked, adapters, controls, first + number, references), tenant=tenant),
                edit=edit,
                format=asked.output_format,
                quality=90 if asked.output_compression is None else asked.output_compression,
                within_s=asked.deadline_s,
            )
            for number in range(asked.n)
        ]

    async def _references(self, files: EditFiles) -> tuple[object, ...]:
        """The further images of an edit."""
        most, given = self.backend.card.max_images, 1 + len(files.references)
        if given > most:
            message = f"there are {given} images, and an edit of this model takes {most}; send fewer"
            raise ApiError(400, message, param="image", code="invalid_value")
        limits = self.settings.limits
        return tuple([await self.run_in_thread(image_from_bytes, one, limits, "image") for one in files.references])

    def _request(
        self,
        asked: ImageRequestBody,
        adapters: list[RegisteredAdapter],
        controls: tuple[ControlUse, ...],
        seed: int,
        references: tuple[object, ...] = (),
    ) -> Request:
        width_px, height_px = asked.size_px or (None, None)
        uses = zip(asked.loras, adapters, strict=True)
        num_steps = asked.steps or self.backend.card.num_steps
        return Request(
            prompt=asked.prompt,
            negative_prompt=asked.negative_prompt,
            num_steps=num_steps,
            guidance=self.backend.card.guidance if asked.guidance is None else asked.guidance,
            guidance_rescale=asked.guidance_rescale,
            true_guidance=asked.true_guidance,
            options=(*asked.options, *((("image", references),) if references else ())),
            scheduler=asked.scheduler,
            seed=seed,
            width_px=width_px,
            height_px=height_px,
            loras=tuple(LoraUse(str(adapter.path), one.scale) for one, adapter in uses),
            controls=controls,
            late_steps=_late_steps(asked, num_steps),
        )

    async def _control(self, asked: ControlNetSelection, number: int) -> ControlUse:
        where = f"controls.{number}"
        known = self.backend.card.controls
        if asked.name not in known:
            message = f"no ControlNet {asked.name!r} is served here (known: {', '.join(known) or 'none'})"
            raise ApiError(404, message, param=f"{where}.name", code="control_not_found")
        image = await self.run_in_thread(image_from_base64, asked.image, self.settings.limits, f"{where}.image")
        return ControlUse(asked.name, image, asked.scale, asked.start, asked.end)


def stopping() -> ApiError:
    """The error of a server that is stopping."""
    message = "the server is stopping; send the request again, to another server or later"
    return ApiError(503, message, kind="server_error", code="not_ready", headers={"Retry-After": "5"})


def _names(asked: ImageRequestBody) -> list[str]:
    names = [one.name for one in asked.loras]
    if len(set(names)) < len(names):
        raise ApiError(400, "a LoRA is named twice; name each of them once", param="loras", code="invalid_value")
    return names


def _late_steps(asked: ImageRequestBody, num_steps: int) -> int:
    if asked.late_steps is not None:
        return asked.late_steps
    return usual_bound(num_steps) if asked.exact is False else 0
