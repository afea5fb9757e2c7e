"""Data model of serving: an image request, its add-ons, and how it can end.

A *request* is one image. It brings its own *LoRAs* (low-rank weight updates, each with a scale) and *ControlNets*
(networks that condition the denoiser, each on an image). All are chosen per request and must not affect other requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from takeup.errors import BadInput, TakeupError

State = Literal["waiting", "running", "done", "cancelled", "expired", "failed"]


class Cancelled(TakeupError):
    """The request was cancelled before its image was finished."""


class Expired(TakeupError):
    """The request missed its deadline."""


@dataclass(frozen=True, slots=True)
class LoraUse:
    """A LoRA by name, and its scale."""

    name: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class ControlUse:
    """A ControlNet by name, its image, and the range of steps in which it is active, as shares from 0 to 1."""

    net: str
    image: object
    scale: float = 1.0
    start_share: float = 0.0
    end_share: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.start_share < self.end_share <= 1:
            raise BadInput(
                f"ControlNet {self.net!r} acts from {self.start_share:g} to {self.end_share:g}; give shares of the "
                "steps that rise, from 0 to 1"
            )

    def scale_at(self, step: int, num_steps: int) -> float:
        """The scale in this step: zero where the ControlNet is inactive."""
        acts = step / num_steps >= self.start_share and (step + 1) / num_steps <= self.end_share
        return self.scale if acts else 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """One image. Fields that are None take the default of the pipeline.

    `guidance` depends on the family: classifier-free guidance with two branches in Stable Diffusion, an input of the
    network in Flux; `true_guidance` is for Flux with a negative prompt. `late_steps` is the bound K: at most K steps
    run without the LoRAs while they are loaded; 0 waits for them. The first `plain_steps` always run without LoRAs.
    `deadline_s` is a time of the engine's clock.
    """

    prompt: str
    negative_prompt: str | None = None
    num_steps: int = 30
    guidance: float = 5.0
    guidance_rescale: float = 0.0
    true_guidance: float = 1.0
    seed: int = 0
    width_px: int | None = None
    height_px: int | None = None
    scheduler: str | None = None
    eta: float = 0.0
    loras: tuple[LoraUse, ...] = ()
    controls: tuple[ControlUse, ...] = ()
    guess_mode: bool = False
    late_steps: int = 0
    plain_steps: int = 0
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise BadInput(f"num_steps is {self.num_steps}; give at least one step")
        if self.late_steps < 0:
            raise BadInput(f"late_steps is {self.late_steps}; give 0 to wait for LoRAs, or how many steps may pass")
        if self.plain_steps < 0:
            raise BadInput(f"plain_steps is {self.plain_steps}; give how many steps are made without LoRAs, from 0 up")
        if not 0 <= self.seed < 2**63:
            raise BadInput(f"the seed is {self.seed}; choose a whole number from zero up, below 2^63")
        names = [use.name for use in self.loras]
        if len(set(names)) < len(names):
            raise BadInput(f"the LoRAs of a request are {', '.join(names)}; name each of them once")


@dataclass(frozen=True, slots=True)
class Access:
    """One request in a cache trace: the instance that serves it, and the adapters it needs together."""

    instance: int
    adapters: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AdapterReplay:
    """Result of replaying a trace on an adapter cache."""

    policy: str
    num_requests: int
    num_uses: int
    num_loads: int
    num_complete: int

    @property
    def loads_per_request(self) -> float:
        return self.num_loads / max(1, self.num_requests)

    @property
    def complete_share(self) -> float:
        """Share of requests that found all their adapters in the cache."""
        return self.num_complete / max(1, self.num_requests)
