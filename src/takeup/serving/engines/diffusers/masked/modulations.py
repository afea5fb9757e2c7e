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

__all__ = ["Modulations", "embedded"]

KINDS = frozenset({"AdaLayerNormZero", "AdaLayerNormZeroSingle", "AdaLayerNormContinuous"})


class Modulations:
    """On a network from `put` to `remove`. Calls read what was shown last."""

    def __init__(self, network: Any, num_rows: int) -> None:
        self.network = network
        self._layers = [one.linear for one in network.modules() if type(one).__name__ in KINDS]
        weight = self._layers[0].weight
        sizes = [one.out_features for one in self._layers]
        self._now = torch.zeros(num_rows, sum(sizes), dtype=weight.dtype, device=weight.device)
        self._parts = torch.split(self._now, sizes, dim=1)

    @torch.no_grad()
    def of(self, timesteps: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Numbers for all steps: steps, rows, numbers. Timesteps as calls get them, and the other inputs of these."""
        active = silu(embedded(self.network, timesteps, inputs))
        made = [linear(active, one.weight, one.bias) for one in self._layers]
        return torch.cat(made, dim=1).view(len(timesteps), len(active) // len(timesteps), -1)

    def show(self, numbers: torch.Tensor, first_row: int = 0) -> None:
        """From now on calls read these, for rows from this one on."""
        self._now[first_row : first_row + len(numbers)].copy_(numbers)

    def put(self) -> None:
        """Norms read what was shown."""
        for one, part in zip(self._layers, self._parts, strict=True):
            one.kept_numbers = part
            one.__dict__["forward"] = MethodType(_kept, one)

    def remove(self) -> None:
        """Norms compute for themselves again."""
        for one in self._layers:
            if "forward" in vars(one):
                del one.forward, one.kept_numbers


def embedded(network: Any, timesteps: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """What norms are told: steps and, within them, rows; as the network makes it for one step."""
    pooled, dtype = inputs["pooled_projections"], inputs["hidden_states"].dtype
    each = timesteps.to(inputs["timestep"].dtype).repeat_interleave(len(pooled)).to(dtype) * 1000
    strengths = () if inputs.get("guidance") is None else (inputs["guidance"].repeat(len(timesteps)).to(dtype) * 1000,)
    found: torch.Tensor = network.time_text_embed(each, *strengths, pooled.repeat(len(timesteps), 1))
    return found


def _kept(self: Any, _embedding: torch.Tensor) -> torch.Tensor:
    """Reads `kept_numbers` of the layer."""
    found: torch.Tensor = self.kept_numbers
    return found
