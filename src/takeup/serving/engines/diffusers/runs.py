"""One request on its way: its latents, its own scheduler and random numbers, and what the network is told about it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from takeup.serving.model import Request

__all__ = ["Aids", "Bound", "Gatherer", "Masked", "Residuals", "Rows", "Run", "gather"]

MOST_KEPT = 8


@dataclass(slots=True, eq=False)
class Run:
    """A prepared request. `inputs` has a row for every branch (the negative one first); `shared` has none.

    `computed_share` of its tokens are computed in the next step.

    Nothing in here is seen by another request: the scheduler is a copy, because its step index and its history of
    earlier steps are parts of the image.
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

    @property
    def num_rows(self) -> int:
        """Two with guidance by a negative branch, else one."""
        return len(self.inputs["encoder_hidden_states"])

    @property
    def is_done(self) -> bool:
        return self.step == len(self.timesteps)

    @property
    def timestep(self) -> torch.Tensor:
        return self.timesteps[self.step]

    def bucket(self) -> Hashable:
        """Equal for requests that fit into one call of the network."""
        named = {"latents": self.latents, **self.inputs, **self.shared}
        return tuple((name, tensor.shape[1:], tensor.dtype) for name, tensor in sorted(named.items()))

    def scaled_latents(self) -> torch.Tensor:
        """What the network sees: the latents once for every branch, scaled as the scheduler wants them."""
        latents = torch.cat([self.latents] * self.num_rows)
        if hasattr(self.scheduler, "scale_model_input"):
            scaled: torch.Tensor = self.scheduler.scale_model_input(latents, self.timestep)
            return scaled
        return latents


class Residuals(Protocol):
    """What ControlNets add to a U-Net in one call, numbered in decoder order."""

    def total(self, number: int, like: torch.Tensor) -> torch.Tensor:
        """The residual of this number for all rows, in the shape of `like`; waits for it."""

    def write(self, into: Sequence[torch.Tensor]) -> None:
        """All residuals, each into the tensor of its number."""


class Bound(Protocol):
    """One kind of masked call, in fixed memory. What is kept lies in several places, which take turns."""

    num_places: int

    def fill(self, masked: Any) -> int:
        """Bring what this call needs; the place it lies in."""

    def computing(self, number: int) -> AbstractContextManager[None]:
        """Inside, the network computes masked tokens from what lies in this place."""

    def leave(self, masked: Any, number: int) -> None:
        """After the call."""

    def forget(self) -> None:
        """After calls that were only tried out: they wrote over what is kept."""


class Masked(Protocol):
    """What a call that computes some tokens only is told. Calls of one `kind` differ in numbers, not in sizes."""

    @property
    def kind(self) -> Hashable: ...

    def bound(self, prepared: Any) -> Bound:
        """Memory for calls of this kind."""


@dataclass(slots=True)
class Aids:
    """What add-ons say about one call. `weights` is equal for equal weights; hooks mean: call layer by layer."""

    residuals: Residuals | None = None
    weights: Hashable = ()
    has_hooks: bool = False
    masked: Masked | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """The inputs of one network call: the rows of its requests one below the other, each with its own timestep."""

    runs: tuple[Run, ...]
    sample: torch.Tensor
    timestep: torch.Tensor
    inputs: dict[str, torch.Tensor]
    shared: dict[str, torch.Tensor]
    aids: Aids = field(default_factory=Aids)

    @property
    def sizes(self) -> list[int]:
        return [run.num_rows for run in self.runs]


class Gatherer:
    """Gathers rows. As long as the same requests come with the same inputs, these are the same object every time."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, ...], tuple[list[torch.Tensor], dict[str, torch.Tensor]]] = OrderedDict()

    def __call__(self, runs: tuple[Run, ...]) -> Rows:
        """The rows of these requests. Timesteps become floats, as the networks make them before they use them."""
        timesteps = [run.timestep.to(torch.float32).reshape(1).expand(run.num_rows) for run in runs]
        return Rows(
            runs=runs,
            sample=torch.cat([run.scaled_latents() for run in runs]),
            timestep=torch.cat(timesteps),
            inputs=self._inputs(runs),
            shared=runs[0].shared,
        )

    def _inputs(self, runs: tuple[Run, ...]) -> dict[str, torch.Tensor]:
        key = tuple(id(run) for run in runs)
        sources = [tensor for run in runs for _, tensor in sorted(run.inputs.items())]
        old, inputs = self._kept.get(key, ([], {}))
        if len(old) != len(sources) or any(one is not other for one, other in zip(old, sources, strict=True)):
            inputs = {name: torch.cat([run.inputs[name] for run in runs]) for name in runs[0].inputs}
        self._kept[key] = sources, inputs
        self._kept.move_to_end(key)
        while len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return inputs


def gather(runs: tuple[Run, ...]) -> Rows:
    """The rows of these requests, gathered anew."""
    return Gatherer()(runs)
