"""Data model of serving: an image request with its add-ons; arrivals, costs and outcomes of a simulated queue."""

import math
from bisect import bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from takeup.core.report import Reported
from takeup.errors import BadInput, TakeupError

# Data model of the queue simulation: arrivals, step costs, the design of a serving system, and outcomes ---------------
#
# Step times are measured, as a function of the rows of a call. Load times are part of the arrivals, so that all
# compared designs load the same LoRAs in the same time.

Ending = Literal["done", "refused", "expired"]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request that is ready for its next step. `num_rows`: one for every branch of its guidance.

    A masked edit computes only `computed_share` of its tokens.
    """

    number: int
    bucket: Hashable
    num_rows: int
    deadline_s: float = math.inf
    computed_share: float = 1.0


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that arrives at `arrival_s`. `load_s` holds the seconds to load each of its LoRAs from storage."""

    number: int
    arrival_s: float
    num_steps: int = 30
    num_rows: int = 2
    loras: tuple[Hashable, ...] = ()
    load_s: tuple[float, ...] = ()
    num_controls: int = 0
    shape: str = ""
    deadline_s: float = math.inf

    @property
    def batch_key(self) -> Hashable:
        """Requests with equal keys can be batched statically, from the first step to the last."""
        return self.shape, self.num_steps, frozenset(self.loras), self.num_controls

    def __post_init__(self) -> None:
        if len(self.load_s) != len(self.loras):
            raise BadInput(f"request {self.number} has {len(self.loras)} LoRAs and {len(self.load_s)} times to load")
        if self.num_steps < 1 or self.num_rows < 1:
            raise BadInput(f"request {self.number} has {self.num_steps} steps of {self.num_rows} rows; give some")


@dataclass(frozen=True, slots=True)
class RowCosts:
    """Seconds of a call by its rows: linear interpolation of measured points, extrapolated beyond the last one.

    Fewer rows than the first point cost as much as the first; with a single point, the cost is proportional to rows.
    """

    points: tuple[tuple[int, float], ...]

    def __post_init__(self) -> None:
        rows = [rows for rows, _ in self.points]
        if not rows or rows != sorted(set(rows)) or rows[0] < 1 or any(not seconds > 0 for _, seconds in self.points):
            raise BadInput(f"the costs of calls are {self.points}; give (rows, seconds) with rising rows, above zero")

    def __call__(self, num_rows: int) -> float:
        """Seconds of a call with `num_rows` rows."""
        first_rows, first_s = self.points[0]
        if num_rows <= first_rows:
            return first_s
        if len(self.points) == 1:
            return first_s * num_rows / first_rows
        place = min(bisect_right(self.points, num_rows, key=lambda point: point[0]), len(self.points) - 1)
        (low, low_s), (high, high_s) = self.points[place - 1], self.points[place]
        return low_s + (high_s - low_s) * (num_rows - low) / (high - low)


@dataclass(frozen=True, slots=True)
class Design:
    """Parameters of a simulated serving system.

    Up to `max_running` requests run in an instance; they join at any step (continuous batching), or together when it
    is `empty` (static batching). `control` is None where other devices compute ControlNets concurrently. `late_share`
    of the steps may run without the LoRAs, if there are more than `few_steps`. `skipped_share` of the steps are
    replaced by a lookup in an image cache. Every request spends `before_s` and `after_s` inside the instance but
    outside its step loop (text encoding, image decoding) and `around_s` outside the instance; it spends `switch_s` per
    ControlNet, `patch_s` per LoRA that is not merged yet, and `merge_s` in every call with LoRAs, because their set may
    change from call to call.

    `contention_share` is the mutual slowdown of the step loop and of the work before and after it: with 0 they do not
    affect each other; with 1 they share one device, so each takes twice as long while the other runs.
    """

    name: str
    step: RowCosts
    control: RowCosts | None = None
    gpus_per_instance: int = 1
    max_running: int = 1
    joins: Literal["any step", "empty"] = "any step"
    merge_s: float = 0.0
    parallel_loads: bool = False
    late_share: float = 0.0
    few_steps: int = 0
    skipped_share: float = 0.0
    before_s: float = 0.0
    after_s: float = 0.0
    around_s: float = 0.0
    switch_s: float = 0.0
    patch_s: float = 0.0
    contention_share: float = 0.0

    def __post_init__(self) -> None:
        if self.max_running < 1 or self.gpus_per_instance < 1:
            raise BadInput(f"design {self.name!r} serves {self.max_running} requests on {self.gpus_per_instance} GPUs")
        if not self.contention_share >= 0:
            raise BadInput(f"the contention of {self.name!r} is {self.contention_share:g}; give a share from 0 up")

    def num_steps(self, arrival: Arrival) -> int:
        """The number of steps that are computed, without the skipped ones."""
        return max(1, arrival.num_steps - int(arrival.num_steps * self.skipped_share))

    def late_steps(self, num_steps: int) -> int:
        """How many of `num_steps` may run without the LoRAs; always fewer than all."""
        return min(int(num_steps * self.late_share), num_steps - 1) if num_steps > self.few_steps else 0

    def candidate(self, arrival: Arrival) -> Candidate:
        """The request in the form that the batching rule takes."""
        return Candidate(arrival.number, (arrival.shape, arrival.loras), arrival.num_rows, arrival.deadline_s)

    def call_s(self, arrivals: Sequence[Arrival]) -> float:
        """Seconds of one step of these requests, batched in one call."""
        num_rows = sum(one.num_rows for one in arrivals)
        seconds = self.step(num_rows) + self.merge_s * any(one.loras for one in arrivals)
        num_control_rows = sum(one.num_rows * one.num_controls for one in arrivals)
        return seconds + (self.control(num_control_rows) if self.control and num_control_rows else 0.0)


@dataclass(frozen=True, slots=True)
class Served:
    """The result of one request. `start_s`: when it got a slot in an instance; `first_step_s`: its first step."""

    arrival: Arrival
    ending: Ending
    end_s: float
    start_s: float = math.nan
    first_step_s: float = math.nan
    instance: int = -1
    num_loads: int = 0

    @property
    def latency_s(self) -> float:
        return self.end_s - self.arrival.arrival_s

    @property
    def queueing_s(self) -> float:
        """Seconds from arrival to the first step."""
        return self.first_step_s - self.arrival.arrival_s


@dataclass(frozen=True, slots=True)
class QueueOutcome(Reported):
    """The result of a trace under one design. `busy_s`: summed time in which instances had requests in a slot."""

    design: str
    num_gpus: int
    gpus_per_instance: int
    served: tuple[Served, ...]
    busy_s: float
    num_calls: int
    num_call_rows: int
    num_most_waiting: int = 0

    @property
    def done(self) -> tuple[Served, ...]:
        return tuple(one for one in self.served if one.ending == "done")

    @property
    def images_per_gpu_minute(self) -> float:
        """Finished images per minute of occupied GPU time."""
        return 60 * len(self.done) / (self.busy_s * self.gpus_per_instance) if self.busy_s else 0.0

    @property
    def loads_per_request(self) -> float:
        return sum(one.num_loads for one in self.done) / max(1, len(self.done))

    @property
    def complete_share(self) -> float:
        """Share of finished requests that found all their LoRAs in memory."""
        return sum(one.num_loads == 0 for one in self.done) / max(1, len(self.done))


# Data model of serving: an image request, its add-ons, and how it can end ---------------------------------------------
#
# A *request* is one image. It brings its own *LoRAs* (low-rank weight updates, each with a scale) and *ControlNets*
# (networks that condition the denoiser, each on an image). All are chosen per request and must not affect other
# requests.

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
    network in Flux; `true_guidance` is for Flux with a negative prompt. `options` are further arguments of the pipeline
    by name, such as `prompt_2` or `clip_skip`. `late_steps` is the bound K: at most K steps
    run without the LoRAs while they are loaded; 0 waits for them.
    `deadline_s` is a time of the engine's clock. `tenant`: for whom; the image does not depend on it.
    """

    prompt: str
    negative_prompt: str | None = None
    num_steps: int = 30
    guidance: float = 5.0
    guidance_rescale: float = 0.0
    true_guidance: float | None = None
    seed: int = 0
    width_px: int | None = None
    height_px: int | None = None
    scheduler: str | None = None
    eta: float = 0.0
    loras: tuple[LoraUse, ...] = ()
    controls: tuple[ControlUse, ...] = ()
    options: tuple[tuple[str, Any], ...] = ()
    guess_mode: bool = False
    late_steps: int = 0
    deadline_s: float | None = None
    tenant: str = ""

    def __post_init__(self) -> None:
        if self.num_steps < 1:
            raise BadInput(f"num_steps is {self.num_steps}; give at least one step")
        if self.late_steps < 0:
            raise BadInput(f"late_steps is {self.late_steps}; give 0 to wait for LoRAs, or how many steps may pass")
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
class AdapterReplay(Reported):
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
