"""AdaLN modulations (scales and shifts) of Flux, precomputed for all steps of an edit at once.

They depend on the step and the prompt, not on the image. Computing them for one step reads more than a quarter of all
weights for one row each. The steps of an edit are known when it begins: one matmul per norm computes the rows of all
steps, and every step reads its own from fixed memory. The results equal those of single steps up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MethodType
from typing import Any

import torch
from torch.nn.functional import linear, silu

KINDS = frozenset({"AdaLayerNormZero", "AdaLayerNormZeroSingle", "AdaLayerNormContinuous"})


class Modulations:
    """Installed on a network from `put` to `remove`. Calls read the modulations set by the last `show`."""

    def __init__(self, network: Any, num_rows: int) -> None:
        self.network = network
        self._layers = [one.linear for one in network.modules() if type(one).__name__ in KINDS]
        weight = self._layers[0].weight
        sizes = [one.out_features for one in self._layers]
        self._now = torch.zeros(num_rows, sum(sizes), dtype=weight.dtype, device=weight.device)
        self._parts = torch.split(self._now, sizes, dim=1)

    @torch.no_grad()
    def of(self, timesteps: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Modulations of all steps, shape (steps, rows, numbers), from timesteps and inputs as passed to calls."""
        active = silu(embedded(self.network, timesteps, inputs))
        made = [linear(active, one.weight, one.bias) for one in self._layers]
        return torch.cat(made, dim=1).view(len(timesteps), len(active) // len(timesteps), -1)

    def show(self, numbers: torch.Tensor, first_row: int = 0) -> None:
        """Copy modulations to the buffer that calls read, from row `first_row` on."""
        self._now[first_row : first_row + len(numbers)].copy_(numbers)

    def put(self) -> None:
        """Replace the linear layers of the norms by reads of the buffer."""
        for one, part in zip(self._layers, self._parts, strict=True):
            one.kept_numbers = part
            one.__dict__["forward"] = MethodType(_kept, one)

    def remove(self) -> None:
        """Restore the linear layers of the norms."""
        for one in self._layers:
            if "forward" in vars(one):
                del one.forward, one.kept_numbers


def embedded(network: Any, timesteps: torch.Tensor, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Time and prompt embedding that norms receive, ordered by step, then row; as the network computes it."""
    pooled, dtype = inputs["pooled_projections"], inputs["hidden_states"].dtype
    each = timesteps.to(inputs["timestep"].dtype).repeat_interleave(len(pooled)).to(dtype) * 1000
    strengths = () if inputs.get("guidance") is None else (inputs["guidance"].repeat(len(timesteps)).to(dtype) * 1000,)
    found: torch.Tensor = network.time_text_embed(each, *strengths, pooled.repeat(len(timesteps), 1))
    return found


def _kept(self: Any, _embedding: torch.Tensor) -> torch.Tensor:
    """Replacement forward: return `kept_numbers` of the layer."""
    found: torch.Tensor = self.kept_numbers
    return found
