"""One request on its way: its latents, its own scheduler and random numbers, and what the network is told about it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from takeup.serving.model import Request

__all__ = ["Rows", "Run", "gather"]


@dataclass(slots=True, eq=False)
class Run:
    """A prepared request. `inputs` has a row for every branch (the negative one first); `shared` has none.

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


@dataclass(frozen=True, slots=True)
class Rows:
    """The inputs of one network call: the rows of its requests one below the other, each with its own timestep."""

    runs: tuple[Run, ...]
    sample: torch.Tensor
    timestep: torch.Tensor
    inputs: dict[str, torch.Tensor]
    shared: dict[str, torch.Tensor]

    @property
    def sizes(self) -> list[int]:
        return [run.num_rows for run in self.runs]


def gather(runs: tuple[Run, ...]) -> Rows:
    """The rows of these requests. Timesteps become floats, as the networks make them before they use them."""
    timesteps = [run.timestep.to(torch.float32).reshape(1).expand(run.num_rows) for run in runs]
    return Rows(
        runs=runs,
        sample=torch.cat([run.scaled_latents() for run in runs]),
        timestep=torch.cat(timesteps),
        inputs={name: torch.cat([run.inputs[name] for run in runs]) for name in runs[0].inputs},
        shared=runs[0].shared,
    )
