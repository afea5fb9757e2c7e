"""Interface between the API and a backend: a job, its handle, and a description of the model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from takeup.serving.model import Request

if TYPE_CHECKING:  # processes that only forward jobs must not import the networks
    from takeup.serving.diffusion.addons.lora.targets import LoraTargets
    from takeup.serving.diffusion.engine.steps import OnStep
    from takeup.serving.editing.contract import EditReport, EditRequest


ImageFormat = Literal["png", "jpeg", "webp"]


@dataclass(frozen=True, slots=True)
class ImageJob:
    """One image. It is a pure function of these fields, so the job is idempotent and can be retried elsewhere.

    Except for two: `within_s` is the time left, and `ahead` holds the LoRAs of the waiting jobs, in order.
    """

    request: Request
    edit: EditRequest | None = None
    format: ImageFormat = "png"
    quality: int = 90
    within_s: float | None = None
    ahead: tuple[tuple[Hashable, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What the API needs to know of a model that may run in another process.

    `usual_pixels`: of the images it was trained for, 0 if unknown. `num_steps` and `guidance` are defaults;
    `max_images`: of one edit; `templates` says how many of them there is room for. Fields of a request in `unused`
    have no effect on this model; its negative prompt has one where `negative_needs` is above 1.
    """

    family: str
    targets: LoraTargets
    controls: tuple[str, ...]
    usual_pixels: int = 0
    num_steps: int = 30
    guidance: float = 5.0
    max_images: int = 1
    templates: str = ""
    unused: tuple[str, ...] = ()
    negative_needs: Literal["guidance", "true_guidance"] = "guidance"
    true_guidance: float = 1.0


@dataclass(slots=True, eq=False)
class JobHandle:
    """A running job. `done` holds the bytes of the image; then `report` says what an edit did."""

    job: ImageJob
    on_step: OnStep
    done: Future[bytes] = field(default_factory=Future)
    on_cancel: Callable[[], None] = lambda: None
    is_cancelled: bool = False
    report: EditReport | None = None

    def __post_init__(self) -> None:
        self.done.set_running_or_notify_cancel()  # a waiter may be cancelled without cancelling the future

    def cancel(self) -> None:
        """Stop the job; no effect once it is done."""
        if not self.done.done():
            self.is_cancelled = True
            self.on_cancel()

    def finish(self, picture: bytes, report: EditReport | None = None) -> None:
        """Complete the job with its image."""
        if not self.done.done():
            self.report = report
            self.done.set_result(picture)

    def fail(self, problem: BaseException) -> None:
        """Complete the job with an error."""
        if not self.done.done():
            self.done.set_exception(problem)


class Backend(Protocol):
    """Generates images. `start` may be called from any thread."""

    @property
    def card(self) -> ModelCard:
        """The model."""

    @property
    def is_ready(self) -> bool:
        """Whether jobs can be started."""

    @property
    def loras(self) -> Collection[str]:
        """LoRAs known to be in memory."""

    def start(self, job: ImageJob, on_step: OnStep) -> JobHandle:
        """Start the job without waiting for it. `on_step` is called from a thread of the backend."""

    def forget(self, name: str) -> None:
        """Drop this LoRA or template from caches; it will not be requested again."""

    def pin(self, name: str, *, is_pinned: bool) -> None:
        """Keep this LoRA in memory, or no longer."""

    def numbers(self) -> Mapping[str, float]:
        """Counters and gauges for monitoring."""

    def close(self) -> None:
        """End running jobs and free all memory."""
