"""State of a request, the batch of one network call, and the add-on interface. Read this first.

A `DenoisingRun` is a prepared request: latents, its own scheduler and random numbers, network inputs. Each step, runs
that fit together become one `BatchRows`; add-ons (LoRAs, ControlNets, masked edits) delay a request, split requests
into buckets, act around the network call, and pass it `AddOnInputs`.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from takeup.serving.model import Request

# The state of one request: its latents, its own scheduler and random numbers, and its network inputs ------------------

MAX_CACHED_INPUTS = 8


@dataclass(slots=True, eq=False)
class DenoisingRun:
    """A prepared request. `inputs` has a row for every branch (the negative one first).

    `shared` has inputs without rows, such as token positions: requests share a call only if these are equal in value.

    `computed_share` of its tokens are computed in the next step. `accepts` sees each prediction before the step is
    made; if it answers False, the step is computed again.

    Nothing here is shared with another request: the scheduler is a copy, because its step index and its history of
    earlier steps affect the image.
    """

    request: Request
    latents: torch.Tensor
    scheduler: Any
    timesteps: list[torch.Tensor]
    inputs: dict[str, torch.Tensor]
    shared: dict[str, torch.Tensor] = field(default_factory=dict)
    step_options: dict[str, Any] = field(default_factory=dict)
    extras: dict[str, Any] = field(default_factory=dict)
    step: int = 0
    computed_share: float = 1.0
    accepts: Callable[[torch.Tensor], bool] | None = None
    _shared_values: Hashable = field(init=False)

    def __post_init__(self) -> None:
        self._shared_values = tuple((name, digest(tensor)) for name, tensor in sorted(self.shared.items()))

    @property
    def num_rows(self) -> int:
        """Two with a negative guidance branch, else one."""
        return len(self.inputs["encoder_hidden_states"])

    @property
    def is_done(self) -> bool:
        return self.step == len(self.timesteps)

    @property
    def timestep(self) -> torch.Tensor:
        return self.timesteps[self.step]

    def bucket(self) -> Hashable:
        """Equal for requests that fit into one network call."""
        named = {"latents": self.latents, **self.inputs}
        shapes = tuple((name, tensor.shape[1:], tensor.dtype) for name, tensor in sorted(named.items()))
        return shapes, self._shared_values

    def scaled_latents(self) -> torch.Tensor:
        """The network input: the latents once for every branch, scaled by the scheduler."""
        latents = torch.cat([self.latents] * self.num_rows)
        if hasattr(self.scheduler, "scale_model_input"):
            scaled: torch.Tensor = self.scheduler.scale_model_input(latents, self.timestep)
            return scaled
        return latents


def digest(tensor: torch.Tensor) -> Hashable:
    """Equal for tensors of equal shape, type and values."""
    data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return tensor.shape, tensor.dtype, hashlib.sha256(data.numpy().tobytes()).digest()


class ControlResiduals(Protocol):
    """What ControlNets add to a U-Net in one call, numbered in decoder order."""

    def total(self, number: int, like: torch.Tensor) -> torch.Tensor:
        """The residual of this number for all rows, in the shape of `like`; blocks until it is ready."""

    def write(self, into: Sequence[torch.Tensor]) -> None:
        """Write each residual into the tensor of its number."""


class GraphBuffers(Protocol):
    """One kind of masked call, in static buffers. Cached activations use several buffers in rotation."""

    num_places: int

    def fill(self, masked: Any) -> int:
        """Load the inputs of this call. Returns the number of the buffer."""

    def computing(self, number: int) -> AbstractContextManager[None]:
        """Inside, the network computes masked tokens from this buffer."""

    def forget(self) -> None:
        """Invalidate the buffers after warm-up calls, which overwrite them."""


class MaskedInputs(Protocol):
    """Inputs of a call that computes only some tokens. Calls of one `kind` have equal shapes."""

    @property
    def kind(self) -> Hashable: ...

    def bound(self, prepared: Any) -> GraphBuffers:
        """Static buffers for calls of this kind."""


@dataclass(slots=True)
class AddOnInputs:
    """What add-ons set for one call. `weights` is equal for equal weights; `has_hooks`: call layer by layer."""

    residuals: ControlResiduals | None = None
    weights: Hashable = ()
    has_hooks: bool = False
    masked: MaskedInputs | None = None


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The inputs of one network call: the rows of its requests concatenated, each with its own timestep."""

    runs: tuple[DenoisingRun, ...]
    sample: torch.Tensor
    timestep: torch.Tensor
    inputs: dict[str, torch.Tensor]
    shared: dict[str, torch.Tensor]
    addon_inputs: AddOnInputs = field(default_factory=AddOnInputs)

    @property
    def sizes(self) -> list[int]:
        return [run.num_rows for run in self.runs]


class RowGatherer:
    """Gathers rows. While requests and their inputs are unchanged, `inputs` is the same object every time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, ...], tuple[list[torch.Tensor], dict[str, torch.Tensor]]] = OrderedDict()

    def __call__(self, runs: tuple[DenoisingRun, ...]) -> BatchRows:
        """The rows of these requests. Timesteps become floats, as the networks would convert them anyway."""
        timesteps = [run.timestep.to(torch.float32).reshape(1).expand(run.num_rows) for run in runs]
        return BatchRows(
            runs=runs,
            sample=torch.cat([run.scaled_latents() for run in runs]),
            timestep=torch.cat(timesteps),
            inputs=self._inputs(runs),
            shared=runs[0].shared,
        )

    def _inputs(self, runs: tuple[DenoisingRun, ...]) -> dict[str, torch.Tensor]:
        key = tuple(id(run) for run in runs)
        sources = [tensor for run in runs for _, tensor in sorted(run.inputs.items())]
        old, inputs = self._kept.get(key, ([], {}))
        if len(old) != len(sources) or any(one is not other for one, other in zip(old, sources, strict=True)):
            inputs = {name: torch.cat([run.inputs[name] for run in runs]) for name in runs[0].inputs}
        self._kept[key] = sources, inputs
        self._kept.move_to_end(key)
        while len(self._kept) > MAX_CACHED_INPUTS:
            self._kept.popitem(last=False)
        return inputs


def gather(runs: tuple[DenoisingRun, ...]) -> BatchRows:
    """The rows of these requests, without a cache."""
    return RowGatherer()(runs)


# Add-on interface of the step loop: delay a request, split requests into buckets, act around a network call -----------


class AddOn(Protocol):
    """LoRAs, ControlNets, masked edits. The engine calls an add-on for the requests it acts on, before each step."""

    slot: str | None = None
    """Acts on requests with this key in `extras` and on the calls they share; None: on all."""

    def joined(self, run: DenoisingRun) -> None:
        """The request enters the loop; raise to reject it."""

    def is_ready(self, run: DenoisingRun) -> bool:
        """Whether the request can make its next step now; if not, the other requests proceed without it."""
        return True

    def plan(self, runs: Sequence[DenoisingRun]) -> None:
        """These requests make a step now; called before `bucket`."""
        return

    def bucket(self, run: DenoisingRun) -> Hashable:
        """Equal for requests that can share a network call as far as this add-on is concerned."""
        return None

    def around(self, rows: BatchRows) -> AbstractContextManager[None]:
        """Context manager around the network call for `rows`."""
        return nullcontext()

    def left(self, run: DenoisingRun) -> None:
        """The request has ended, for whatever reason."""


# One kind of pipeline -------------------------------------------------------------------------------------------------


class Family(Protocol):
    """The interface to one kind of pipeline."""

    pipeline: Any
    encoding: AbstractContextManager[Any]
    """Held while text encoders are used, for LoRAs may change them for a moment."""
    options: tuple[str, ...]
    """The names in `options` of a request that are supported."""
    unused: tuple[str, ...]
    """Fields of a request that have no effect."""

    @property
    def add_ons(self) -> Sequence[AddOn]:
        """What the family itself needs in the step loop."""

    @property
    def network(self) -> Any:
        """The denoiser."""

    def prepare(self, request: Request) -> DenoisingRun:
        """Encode the prompts, sample the noise, set up a separate scheduler."""

    def encode(self, request: Request) -> dict[str, torch.Tensor]:
        """The outputs of the text encoders, a row for every guidance branch."""

    def predict(self, rows: BatchRows) -> torch.Tensor:
        """One call of the network."""

    def guide(self, run: DenoisingRun, prediction: torch.Tensor) -> torch.Tensor:
        """Combine the predictions of the branches into one."""

    def decode(self, run: DenoisingRun) -> torch.Tensor:
        """The image of finished latents, values from 0 to 1, channels first."""
