"""What the time of a step adds to every residual block, by one product for all blocks.

A block projects the time for itself: a product of one or two rows, which a device is done with before it has begun.
Here the first block on the way down has all of them computed. Weights are put together anew in every call, which takes
as long as reading them: so they are always those that LoRAs left.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import linear, silu

__all__ = ["Times", "time_numbers"]


class Times:
    """For these residual blocks of a network, whose first convolution lacks its bias: that is in here too."""

    def __init__(self, network: Any, blocks: Sequence[Any]) -> None:
        self.is_on = True
        self._blocks = list(blocks)
        biases = [(one.time_emb_proj.bias + one.conv1.bias).detach() for one in self._blocks]
        self._bias, self._sizes = torch.cat(biases), [len(one) for one in biases]
        network.down_blocks[0].register_forward_pre_hook(self._compute, with_kwargs=True)
        network.register_forward_hook(self._forget, always_call=True)

    def _compute(self, _block: Any, _given: Any, named: dict[str, Any]) -> None:
        if not self.is_on or named.get("temb") is None:
            return
        weight = torch.cat([one.time_emb_proj.weight for one in self._blocks])
        numbers = linear(silu(named["temb"]), weight, self._bias)
        for one, part in zip(self._blocks, torch.split(numbers, self._sizes, 1), strict=True):
            one.time_numbers = part

    def _forget(self, *_: Any) -> None:
        for one in self._blocks:
            vars(one).pop("time_numbers", None)


def time_numbers(block: Any, temb: torch.Tensor) -> torch.Tensor:
    """What this block adds, with the bias of its first convolution: computed before, or now."""
    if hasattr(block, "time_numbers"):
        numbers: torch.Tensor = block.time_numbers
        return numbers
    projected: torch.Tensor = block.time_emb_proj(silu(temb)) + block.conv1.bias
    return projected
