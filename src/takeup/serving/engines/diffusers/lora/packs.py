"""A LoRA in the layout of stacks: for each block of weights two tensors, all of them in one flat buffer.

The layers of one shape are slices of one block. A LoRA becomes, for each block, `up` and `down` with a slice for each
layer too, padded with zeros to the largest rank, in the dtype of the weights. The buffer is pinned where there is a
device, so that it is copied at full speed and asynchronously.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch

from takeup.serving.engines.diffusers.device.stacks import WeightStacks
from takeup.serving.engines.diffusers.lora.changes import Lora
from takeup.serving.engines.diffusers.lora.targets import LayerId


@dataclass(frozen=True, slots=True)
class LoraPack:
    """The low-rank factors of one LoRA. `shapes`: layers, outputs, inputs and rank for the number of each block."""

    host: torch.Tensor = field(repr=False)
    shapes: Mapping[int, tuple[int, int, int, int]]

    def spans(self) -> dict[int, slice]:
        """The span of each block in the buffer."""
        spans, offset = {}, 0
        for number, (layers, outputs, inputs, rank) in self.shapes.items():
            spans[number] = slice(offset, offset + layers * rank * (outputs + inputs))
            offset = spans[number].stop
        return spans

    def pieces(self, flat: torch.Tensor) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """`up` (layers, outputs, rank) and `down` (layers, rank, inputs) of every block, as views of the buffer."""
        pieces = {}
        for number, span in self.spans().items():
            layers, outputs, inputs, rank = self.shapes[number]
            middle = span.start + layers * outputs * rank
            up, down = flat[span.start : middle], flat[middle : span.stop]
            pieces[number] = up.view(layers, outputs, rank), down.view(layers, rank, inputs)
        return pieces


class LoraPacker:
    """Packs LoRAs for the stacks of one component, with an LRU cache of `max_kept` packs."""

    def __init__(self, stacks: WeightStacks, component: str, max_kept: int = 16) -> None:
        self._stacks, self._component, self._max_kept = stacks, component, max_kept
        self._kept: OrderedDict[int, tuple[Lora, LoraPack]] = OrderedDict()

    def pack(self, lora: Lora) -> LoraPack:
        """The low-rank changes of stacked layers, in the layout of the stacks."""
        if id(lora) not in self._kept:
            self._kept[id(lora)] = lora, self._packed(lora)
        self._kept.move_to_end(id(lora))
        while len(self._kept) > self._max_kept:
            self._kept.popitem(last=False)
        return self._kept[id(lora)][1]

    def can_pack(self, layer: LayerId, lora: Lora) -> bool:
        """Whether this layer is stacked, and the LoRA changes it by a low-rank product."""
        return layer[0] == self._component and layer[1] in self._stacks.places and lora.changes[layer].is_low_rank

    def _packed(self, lora: Lora) -> LoraPack:
        shapes = self._shapes(lora)
        block = self._stacks.stacks[0].block
        num_numbers = sum(layers * rank * (outputs + inputs) for layers, outputs, inputs, rank in shapes.values())
        pack = LoraPack(torch.zeros(num_numbers, dtype=block.dtype, pin_memory=block.is_cuda), shapes)
        pieces = pack.pieces(pack.host)
        for layer in self._layers(lora):
            change, place = lora.changes[layer], self._stacks.places[layer[1]]
            up, down = (piece[place.number] for piece in pieces[place.stack])
            up[:, : change.rank] = _as(up.dtype, change.pieces["up"].of(lora.buffer)) * change.factor
            down[: change.rank] = _as(up.dtype, change.pieces["down"].of(lora.buffer))
        return pack

    def _shapes(self, lora: Lora) -> dict[int, tuple[int, int, int, int]]:
        ranks: dict[int, int] = {}
        for layer in self._layers(lora):
            number = self._stacks.places[layer[1]].stack
            ranks[number] = max(ranks.get(number, 0), lora.changes[layer].rank)
        blocks = {number: self._stacks.stacks[number].block for number in ranks}
        largest_first = sorted(ranks, key=lambda number: -blocks[number].numel())
        shapes = {number: (len(blocks[number]), *self._stacks.stacks[number].shape) for number in largest_first}
        return {number: (*shape, ranks[number]) for number, shape in shapes.items()}

    def _layers(self, lora: Lora) -> Iterator[LayerId]:
        return (layer for layer in lora.changes if self.can_pack(layer, lora))


def _as(dtype: torch.dtype, factor: torch.Tensor) -> torch.Tensor:
    """As a matrix; in single precision if it is to be rounded to another dtype."""
    return factor.flatten(1) if factor.dtype == dtype else factor.flatten(1).float()
