"""The time-embedding projections of all residual blocks, by one matmul for all blocks of a width.

Separately, each block projects the time embedding with a matmul of one or two rows, which is dominated by launch
overhead. Here a hook on the first down block computes all of them from stacked weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import linear, silu

from takeup.serving.engines.diffusers.device.stacks import TIME_PROJECTION, WeightStacks


@dataclass(frozen=True, slots=True)
class _ProjectionGroup:
    """Blocks of one width, and their concatenated weights and biases."""

    blocks: Sequence[Any]
    weight: torch.Tensor
    bias: torch.Tensor


class TimeProjections:
    """Projects the time embedding for these residual blocks; includes the omitted bias of their first convolution.

    Blocks whose weights are not stacked project the time embedding themselves.
    """

    def __init__(self, network: Any, blocks: Sequence[Any], stacks: WeightStacks) -> None:
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


def _widths(network: Any, blocks: Sequence[Any], stacks: WeightStacks) -> Iterator[_ProjectionGroup]:
    wanted = set(blocks)
    for stack in stacks.stacks:
        paths = [path.removesuffix(TIME_PROJECTION) for path in stack.paths if path.endswith(TIME_PROJECTION)]
        inside = [network.get_submodule(path) for path in paths]
        if inside and wanted.issuperset(inside):
            bias = torch.cat([(one.time_emb_proj.bias + one.conv1.bias).detach() for one in inside])
            yield _ProjectionGroup(inside, stack.block.flatten(0, 1), bias)


def time_projection(block: Any, temb: torch.Tensor) -> torch.Tensor:
    """The projection for this block plus the bias of its first convolution: precomputed, or computed now."""
    if hasattr(block, "time_numbers"):
        numbers: torch.Tensor = block.time_numbers
        return numbers
    projected: torch.Tensor = block.time_emb_proj(silu(temb)) + block.conv1.bias
    return projected
