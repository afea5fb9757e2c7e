"""LoRAs merged into whole stacks: one copy to the device, one product for each shape of layer.

How it works. The layers of one shape lie in one block, W with a slice for each. A set of LoRAs becomes, for each
block, two tensors with a slice for each layer: all its factors A one below the other, all its factors B side by side,
scales multiplied in. Then W = W0 + B A is one batched product over the whole block, from the pristine W0; sums of
several LoRAs are sums of their products. Factors are packed into one flat buffer of the host, in the type of the
weights, pinned where there is a device: block by block is copied in a stream of its own while the block before it is
merged. They stay on the device as long as the set is kept, so coming back to it is a merge and no copy. Changes that
are no thin products (DoRA, LoHa, LoKr), and convolutions, are patched layer by layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from takeup.serving.engines.diffusers.device.passes import cuda
from takeup.serving.engines.diffusers.device.stacks import Stacks
from takeup.serving.engines.diffusers.lora.targets import Layer, LayerId
from takeup.serving.engines.diffusers.lora.weights import LoraSet, Staged, Weights

__all__ = ["Factors", "GroupedWeights"]


@dataclass(frozen=True, slots=True)
class Factors(Staged):
    """A staged set whose thin products are not computed yet: for each block `up` and `down`, in one flat buffer."""

    host: torch.Tensor = field(default_factory=lambda: torch.empty(0), repr=False)
    shapes: Mapping[int, tuple[int, int, int, int]] = field(default_factory=dict)
    landed: dict[str, torch.Tensor] = field(default_factory=dict, repr=False, compare=False)

    def pieces(self, flat: torch.Tensor) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
        """`up` (layers, outputs, rank) and `down` (layers, rank, inputs) of every block, as views of the buffer."""
        pieces, offset = {}, 0
        for number, (layers, outputs, inputs, rank) in self.shapes.items():
            up, down = layers * outputs * rank, layers * rank * inputs
            first, second = flat[offset : offset + up], flat[offset + up : offset + up + down]
            pieces[number] = first.view(layers, outputs, rank), second.view(layers, rank, inputs)
            offset += up + down
        return pieces

    def spans(self) -> dict[int, slice]:
        """Where each block lies in the buffer."""
        spans, offset = {}, 0
        for number, (layers, outputs, inputs, rank) in self.shapes.items():
            spans[number] = slice(offset, offset + layers * rank * (outputs + inputs))
            offset = spans[number].stop
        return spans


class GroupedWeights(Weights):
    """Weights whose linear layers live in `stacks`. `stage` packs factors on the host; `use` copies and merges them."""

    def __init__(self, layers: Mapping[LayerId, Layer], stacks: Stacks, component: str) -> None:
        super().__init__(layers)
        self._stacks, self._component = stacks, component
        self._pristine_blocks: dict[int, torch.Tensor] = {}

    def stage(self, loras: LoraSet) -> Staged:
        grouped = {layer for layer in self._changed(loras) if self._is_grouped(layer, loras)}
        singly = self._patched(loras, self._changed(loras) - grouped)
        shapes = self._shapes(loras, grouped)
        num_numbers = sum(layers * rank * (outputs + inputs) for layers, outputs, inputs, rank in shapes.values())
        block = self._stacks.stacks[0].block
        host = torch.zeros(num_numbers, dtype=block.dtype, pin_memory=block.is_cuda)
        factors = Factors(loras, singly, host, shapes)
        self._pack(factors, grouped)
        return factors

    @torch.no_grad()
    def _take_out(self, next_one: Staged) -> None:
        super()._take_out(next_one)
        for number in _shapes_of(self._current).keys() - _shapes_of(next_one).keys():
            self._block(number).copy_(self._clean_block(number))

    def _put_in(self, staged: Staged) -> None:
        if isinstance(staged, Factors):
            self._merge(staged)  # whole blocks; so layers that are patched singly come after it
        super()._put_in(staged)

    @torch.no_grad()
    def _merge(self, factors: Factors) -> None:
        for number, (up, down) in self._landed(factors):
            torch.baddbmm(self._clean_block(number), up, down, out=self._block(number))

    def _landed(self, factors: Factors) -> Iterator[tuple[int, tuple[torch.Tensor, torch.Tensor]]]:
        """Blocks one after the other, when their factors are on the device; the next one is on its way meanwhile."""
        flat = factors.landed.get("flat")
        arrivals = {} if flat is not None else self._send(factors)
        for number, piece in factors.pieces(factors.landed["flat"]).items():
            if number in arrivals:
                arrivals[number].wait()
            yield number, piece

    def _send(self, factors: Factors) -> dict[int, Any]:
        """Begin to copy; for each block the event after which it is there. On a CPU nothing is copied."""
        device = self._block(0).device
        if device.type != "cuda":
            factors.landed["flat"] = factors.host
            return {}
        flat = factors.landed["flat"] = torch.empty_like(factors.host, device=device)
        flat.record_stream(_copy_stream())
        _copy_stream().wait_stream(cuda.current_stream())  # whoever had this memory before is done with it
        arrivals = {}
        with cuda.stream(_copy_stream()):
            for number, span in factors.spans().items():
                flat[span].copy_(factors.host[span], non_blocking=True)
                arrivals[number] = cuda.Event()
                arrivals[number].record()
        return arrivals

    def _pack(self, factors: Factors, grouped: set[LayerId]) -> None:
        pieces = factors.pieces(factors.host)
        for layer in grouped:
            place = self._stacks.places[layer[1]]
            up, down = (piece[place.number] for piece in pieces[place.stack])
            first = 0
            for lora, scale in factors.loras:
                if layer not in lora.changes:
                    continue
                change = lora.changes[layer]
                span = slice(first, first + change.rank)
                up[:, span] = _as(up.dtype, change.pieces["up"].of(lora.buffer)) * (change.factor * scale)
                down[span] = _as(up.dtype, change.pieces["down"].of(lora.buffer))
                first += change.rank

    def _shapes(self, loras: LoraSet, grouped: set[LayerId]) -> dict[int, tuple[int, int, int, int]]:
        """Of each block that changes: layers, outputs, inputs, and the most ranks that one of its layers wants."""
        ranks: dict[int, int] = {}
        for layer in grouped:
            number = self._stacks.places[layer[1]].stack
            total = sum(lora.changes[layer].rank for lora, _ in loras if layer in lora.changes)
            ranks[number] = max(ranks.get(number, 0), total)
        blocks = {number: self._block(number).shape for number in sorted(ranks, key=self._size, reverse=True)}
        return {number: (*shape, ranks[number]) for number, shape in blocks.items()}

    def _is_grouped(self, layer: LayerId, loras: LoraSet) -> bool:
        own = [lora.changes[layer] for lora, _ in loras if layer in lora.changes]
        return layer[0] == self._component and layer[1] in self._stacks.places and all(one.is_low_rank for one in own)

    def _clean_block(self, number: int) -> torch.Tensor:
        with self._lock:
            if number not in self._pristine_blocks:  # then nobody has patched it yet
                self._pristine_blocks[number] = self._block(number).clone()
            return self._pristine_blocks[number]

    def _clean(self, layer: LayerId) -> torch.Tensor:
        place = self._stacks.places.get(layer[1]) if layer[0] == self._component else None
        return super()._clean(layer) if place is None else self._clean_block(place.stack)[place.number]

    def _block(self, number: int) -> torch.Tensor:
        return self._stacks.stacks[number].block

    def _size(self, number: int) -> int:
        return self._block(number).numel()


def _shapes_of(staged: Staged) -> Mapping[int, tuple[int, int, int, int]]:
    return staged.shapes if isinstance(staged, Factors) else {}


def _as(dtype: torch.dtype, factor: torch.Tensor) -> torch.Tensor:
    """As a matrix, in single precision if it is rounded to another type afterwards."""
    return factor.flatten(1) if factor.dtype == dtype else factor.flatten(1).float()


_COPY_STREAMS: dict[int, Any] = {}


def _copy_stream() -> Any:
    device = cuda.current_device()
    if device not in _COPY_STREAMS:
        _COPY_STREAMS[device] = cuda.Stream()
    return _COPY_STREAMS[device]
