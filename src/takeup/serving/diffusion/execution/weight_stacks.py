"""Weights of equal shape in one block of memory, so that they can be used, and patched, together."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.functional import linear, silu

# How it works. A network has hundreds of linear layers, but few shapes. Here the layers of one shape become slices of
# one tensor, in the order in which the network names them: its parameters keep their values and only change storage.
# Layers that project the text for cross-attention have separate stacks, because all of them have the same input; so
# have those that project the time embedding.

TEXT_PROJECTIONS, TIME_PROJECTION = (".attn2.to_k", ".attn2.to_v"), ".time_emb_proj"


@dataclass(frozen=True, slots=True)
class WeightStack:
    """The stacked weights of `paths`: `block[i]` is the storage of the weight of `paths[i]`, not a copy."""

    block: torch.Tensor = field(repr=False)
    paths: tuple[str, ...]
    is_text: bool

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs of each of its layers."""
        return self.block.shape[1], self.block.shape[2]


@dataclass(frozen=True, slots=True)
class StackSlot:
    """The stack and index of the weight of a layer."""

    stack: int
    number: int


@dataclass(frozen=True, slots=True)
class WeightStacks:
    """All stacks of a network, and the location of every stacked layer."""

    stacks: tuple[WeightStack, ...]
    places: Mapping[str, StackSlot]

    def rows(self, first: str, num_layers: int) -> torch.Tensor:
        """The weights of `num_layers` consecutive layers, starting at `first`, as one weight with all their outputs."""
        place = self.places[first]
        block = self.stacks[place.stack].block[place.number : place.number + num_layers]
        return block.flatten(0, 1)

    def are_neighbours(self, paths: tuple[str, ...]) -> bool:
        """Whether these layers are consecutive in one stack, in this order."""
        found = [self.places.get(path) for path in paths]
        first = found[0]
        return first is not None and found == [StackSlot(first.stack, first.number + i) for i in range(len(paths))]


@torch.no_grad()
def stack_layers(network: Any) -> WeightStacks:
    """Move the weights of all linear layers of the network into stacks."""
    groups: dict[Any, list[tuple[str, torch.nn.Linear]]] = {}
    for path, module in network.named_modules():
        if type(module) is torch.nn.Linear:
            key = (_is_text(path), path.endswith(TIME_PROJECTION), module.weight.shape, module.weight.dtype)
            groups.setdefault(key, []).append((path, module))
    stacks = tuple(_stack(members) for members in groups.values())
    places = {path: StackSlot(i, j) for i, stack in enumerate(stacks) for j, path in enumerate(stack.paths)}
    return WeightStacks(stacks, places)


def _stack(members: list[tuple[str, torch.nn.Linear]]) -> WeightStack:
    block = torch.stack([module.weight.detach() for _, module in members])
    for slice_, (_, module) in zip(block, members, strict=True):
        module.weight.data = slice_
    return WeightStack(block, tuple(path for path, _ in members), _is_text(members[0][0]))


def _is_text(path: str) -> bool:
    return path.endswith(TEXT_PROJECTIONS)


# The time-embedding projections of all residual blocks, by one matmul for all blocks of a width -----------------------
#
# Separately, each block projects the time embedding with a matmul of one or two rows, which is dominated by launch
# overhead. Here a hook on the first down block computes all of them from stacked weights.


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
