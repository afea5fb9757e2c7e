"""LoRAs merged into whole stacks: one copy to the device, one batched matmul for each layer shape.

How it works. Packed, a LoRA has two tensors for each block of weights. A set of LoRAs is merged block by block: all
factors A and all factors B are concatenated along the rank, scales multiplied in; then W = W0 + B A is one batched
matmul over the whole block, from the pristine W0. So sums of several LoRAs are sums of their products. On a device,
blocks are copied in a separate stream while the block before them is merged; they stay there as long as the set is
kept, so switching back to it is a merge without a copy. Changes that are not low-rank products (DoRA, LoHa, LoKr), and
convolutions, are patched layer by layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from takeup.serving.engines.diffusers.device.passes import cuda
from takeup.serving.engines.diffusers.device.stacks import WeightStacks
from takeup.serving.engines.diffusers.lora.packs import LoraPack, LoraPacker
from takeup.serving.engines.diffusers.lora.targets import Layer, LayerId
from takeup.serving.engines.diffusers.lora.weights import LoraSet, PatchedWeights, StagedWeights

DeviceCopies = Sequence[Mapping[int, Any]]
Product = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class StagedFactors(StagedWeights):
    """A staged set whose low-rank products are not computed yet: packs with their scales, and their device copies."""

    packs: tuple[tuple[LoraPack, float], ...] = ()
    landed: list[torch.Tensor] = field(default_factory=list, repr=False, compare=False)

    @property
    def blocks(self) -> list[int]:
        """The numbers of the blocks that change."""
        return list(dict.fromkeys(number for pack, _ in self.packs for number in pack.shapes))


class StackedWeights(PatchedWeights):
    """Weights whose linear layers are in `stacks`. `stage` packs on the host; `use` copies and merges."""

    def __init__(self, layers: Mapping[LayerId, Layer], stacks: WeightStacks, component: str) -> None:
        super().__init__(layers)
        self._stacks, self._component = stacks, component
        self._packer = LoraPacker(stacks, component)
        self._pristine_blocks: dict[int, torch.Tensor] = {}
        self._copying: Any = None

    def stage(self, loras: LoraSet) -> StagedWeights:
        changed = self._changed(loras)
        singly = {layer for layer in changed if not self._is_grouped(layer, loras)}
        packs = tuple((self._packer.pack(lora), scale) for lora, scale in loras)
        return StagedFactors(loras, self._patched(loras, singly), packs)

    @torch.no_grad()
    def _take_out(self, next_one: StagedWeights) -> None:
        super()._take_out(next_one)
        for number in set(_blocks_of(self._current)) - set(_blocks_of(next_one)):
            self._block(number).copy_(self._clean_block(number))

    @torch.no_grad()
    def _put_in(self, staged: StagedWeights) -> None:
        if isinstance(staged, StagedFactors):
            for number, (up, down) in self._products(staged):
                torch.baddbmm(self._clean_block(number), up, down, out=self._block(number))
        super()._put_in(staged)  # after whole blocks

    def _products(self, factors: StagedFactors) -> Iterator[tuple[int, Product]]:
        """The factors of every block in order, once they are copied; later blocks are prefetched."""
        arrivals: DeviceCopies = [] if factors.landed else self._send(factors)
        pieces = [pack.pieces(flat) for (pack, _), flat in zip(factors.packs, factors.landed, strict=True)]
        for number in factors.blocks:
            for events in arrivals:
                if number in events:
                    events[number].wait()
            own = [(one[number], scale) for one, (_, scale) in zip(pieces, factors.packs, strict=True) if number in one]
            yield number, _concatenated(own)

    def _send(self, factors: StagedFactors) -> DeviceCopies:
        """Start copying. Returns the events after which blocks are ready. On a CPU nothing is copied."""
        device = self._block(0).device
        if device.type != "cuda":
            factors.landed[:] = [pack.host for pack, _ in factors.packs]
            return []
        self._copying = self._copying or cuda.Stream(device)
        factors.landed[:] = [torch.empty_like(pack.host, device=device) for pack, _ in factors.packs]
        self._copying.wait_stream(cuda.current_stream())  # previous users of this memory are done
        arrivals: list[dict[int, Any]] = [{} for _ in factors.packs]
        with cuda.stream(self._copying):
            for number in factors.blocks:
                for (pack, _), flat, events in zip(factors.packs, factors.landed, arrivals, strict=True):
                    if number in pack.shapes:
                        events[number] = _copied(pack.host, flat, pack.spans()[number])
        return arrivals

    def _is_grouped(self, layer: LayerId, loras: LoraSet) -> bool:
        return all(self._packer.can_pack(layer, lora) for lora, _ in loras if layer in lora.changes)

    def _clean_block(self, number: int) -> torch.Tensor:
        with self._lock:
            if number not in self._pristine_blocks:  # then it is not patched yet
                self._pristine_blocks[number] = self._block(number).clone()
            return self._pristine_blocks[number]

    def _clean(self, layer: LayerId) -> torch.Tensor:
        place = self._stacks.places.get(layer[1]) if layer[0] == self._component else None
        return super()._clean(layer) if place is None else self._clean_block(place.stack)[place.number]

    def _block(self, number: int) -> torch.Tensor:
        return self._stacks.stacks[number].block


def _blocks_of(staged: StagedWeights) -> list[int]:
    return staged.blocks if isinstance(staged, StagedFactors) else []


def _copied(host: torch.Tensor, flat: torch.Tensor, span: slice) -> Any:
    flat[span].copy_(host[span], non_blocking=True)
    event = cuda.Event()
    event.record()
    return event


def _concatenated(own: Sequence[tuple[Product, float]]) -> Product:
    """The factors of several LoRAs concatenated into those of one."""
    ups = [up if scale == 1 else up * scale for (up, _), scale in own]
    downs = [down for (_, down), _ in own]
    return (ups[0], downs[0]) if len(own) == 1 else (torch.cat(ups, 2), torch.cat(downs, 1))
