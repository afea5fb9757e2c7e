"""What the time of a step adds to every residual block, by one product for all blocks of a width.

A block projects the time for itself: a product of one or two rows, which a device is done with before it has begun.
Here the first block on the way down has all of them computed, from weights that lie one below the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear, silu

from takeup.serving.engines.diffusers.device.stacks import TIME_PROJECTION, Stacks

__all__ = ["Times", "time_numbers"]


@dataclass(frozen=True, slots=True)
class _Width:
    """Blocks of one width, and the weights and biases of all of them."""

    blocks: Sequence[Any]
    weight: torch.Tensor
    bias: torch.Tensor


class Times:
    """For these residual blocks of a network, whose first convolution lacks its bias: that is in here too.

    Blocks whose weights lie elsewhere project the time for themselves.
    """

    def __init__(self, network: Any, blocks: Sequence[Any], stacks: Stacks) -> None:
        self.is_on = True
        self._widths = list(_widths(network, blocks, stacks))
        network.down_blocks[0].register_forward_pre_hook(self._compute, with_kwargs=True)
        network.register_forward_hook(self._forget, always_call=True)

    def _compute(self, _block: Any, _given: Any, named: dict[str, Any]) -> None:
        if not self.is_on or named.get("temb") is None:
            return
        active = silu(named["temb"])
        for width in self._widths:
            numbers = linear(active, width.weight, width.bias)
            for one, part in zip(width.blocks, numbers.chunk(len(width.blocks), 1), strict=True):
                one.time_numbers = part

    def _forget(self, *_: Any) -> None:
        for width in self._widths:
            for one in width.blocks:
                vars(one).pop("time_numbers", None)


def _widths(network: Any, blocks: Sequence[Any], stacks: Stacks) -> Iterator[_Width]:
    wanted = set(blocks)
    for stack in stacks.stacks:
        paths = [path.removesuffix(TIME_PROJECTION) for path in stack.paths if path.endswith(TIME_PROJECTION)]
        inside = [network.get_submodule(path) for path in paths]
        if inside and wanted.issuperset(inside):
            bias = torch.cat([(one.time_emb_proj.bias + one.conv1.bias).detach() for one in inside])
            yield _Width(inside, stack.block.flatten(0, 1), bias)


def time_numbers(block: Any, temb: torch.Tensor) -> torch.Tensor:
    """What this block adds, with the bias of its first convolution: computed before, or now."""
    if hasattr(block, "time_numbers"):
        numbers: torch.Tensor = block.time_numbers
        return numbers
    projected: torch.Tensor = block.time_emb_proj(silu(temb)) + block.conv1.bias
    return projected
