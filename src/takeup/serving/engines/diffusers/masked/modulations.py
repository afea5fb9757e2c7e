"""What time and prompt do to the norms of Flux, computed for all steps of an edit at once.

Every norm is scaled and shifted by numbers that depend on the step and the prompt, not on the image. To make them for
one step, more than a quarter of all weights is read for the sake of one row each. When an edit begins its steps are
known: their rows are made by one product for each norm, and every step reads its own from fixed memory. The numbers
are those of single steps but for rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType
from typing import Any

import torch
from torch.nn.functional import linear, silu

__all__ = ["Modulations"]

KINDS = frozenset({"AdaLayerNormZero", "AdaLayerNormZeroSingle", "AdaLayerNormContinuous"})


class Modulations:
    """On a network from the first `tell` to `remove`. Calls read the numbers of the step that `use` named last."""

    def __init__(self, network: Any) -> None:
        self.network = network
        self._layers = [one.linear for one in network.modules() if type(one).__name__ in KINDS]
        self._steps = torch.empty(0)
        self._now: torch.Tensor | None = None

    @torch.no_grad()
    def tell(self, timesteps: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> None:
        """The timesteps of all steps as calls get them, and the other inputs of these; use step 0."""
        active = silu(self._embedded(timesteps, inputs))
        made = [linear(active, one.weight, one.bias).view(len(timesteps), -1) for one in self._layers]
        self._steps = torch.cat(made, dim=1)
        if self._now is None or len(self._now) != self._steps.shape[1]:
            self._install([one.shape[1] for one in made], len(active) // len(timesteps))
        self.use(0)

    def use(self, step: int) -> None:
        """From now on calls are those of this step."""
        assert self._now is not None
        self._now.copy_(self._steps[step])

    def remove(self) -> None:
        """Norms compute for themselves again."""
        for one in self._layers if self._now is not None else ():
            del one.forward, one.kept_numbers
        self._now = None

    def _embedded(self, timesteps: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Steps and, within them, rows; as the network does it for one step."""
        pooled, dtype = inputs["pooled_projections"], inputs["hidden_states"].dtype
        each = timesteps.to(inputs["timestep"].dtype).repeat_interleave(len(pooled)).to(dtype) * 1000
        strengths = (
            () if inputs.get("guidance") is None else (inputs["guidance"].repeat(len(timesteps)).to(dtype) * 1000,)
        )
        found: torch.Tensor = self.network.time_text_embed(each, *strengths, pooled.repeat(len(timesteps), 1))
        return found

    def _install(self, sizes: list[int], num_rows: int) -> None:
        self._now = torch.empty_like(self._steps[0])
        for one, part in zip(self._layers, torch.split(self._now, sizes), strict=True):
            one.kept_numbers = part.view(num_rows, -1)
            one.__dict__["forward"] = MethodType(_kept, one)


def _kept(self: Any, _embedding: torch.Tensor) -> torch.Tensor:
    """Reads `kept_numbers` of the layer."""
    found: torch.Tensor = self.kept_numbers
    return found
