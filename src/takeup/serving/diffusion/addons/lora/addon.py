"""LoRAs in the step loop: bounded asynchronous loading, merged into the weights, text encoders included.

How it works. A request with LoRAs joins immediately, while they are loaded. It can make at most `late_steps` steps
without them (0: none, so its image is exact); then it stalls until they are loaded, while other requests continue. When
all its LoRAs are loaded, the patched weights are computed, and its prompt is encoded again if they change a text
encoder, both off the loop; from the next step boundary on it is computed with all of them. A LoRA that cannot be loaded
fails its request.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from takeup.serving.diffusion.addons.lora.loading import LoraLoader
from takeup.serving.diffusion.addons.lora.targets import DENOISERS, Layer, LayerId, layers_of
from takeup.serving.diffusion.addons.lora.weights import (
    Lora,
    LoraSet,
    LoraSetKey,
    PatchedWeights,
    StagedWeights,
    key_of,
)
from takeup.serving.diffusion.contract import AddOn, BatchRows, DenoisingRun, Family
from takeup.serving.diffusion.execution.cuda_graph import cuda
from takeup.serving.diffusion.execution.weight_stacks import WeightStacks

# LoRAs merged into whole stacks: one copy to the device, one batched matmul for each layer shape ----------------------
#
# How it works. The layers of one shape are slices of one block of weights. Packed, a LoRA has for each block `up` and
# `down` with a slice for each layer too, padded with zeros to the largest rank, all in one flat buffer, pinned where
# there is a device. A set of LoRAs is merged block by block: all factors are concatenated along the rank, scales
# multiplied in; then W = W0 + B A is one batched matmul from the pristine W0. On a device, blocks are copied in a
# separate stream while the block before them is merged; they stay there as long as the set is kept. Changes that are
# not low-rank products (DoRA, LoHa, LoKr), and convolutions, are patched layer by layer.


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


SLOT = "loras"


@dataclass(slots=True)
class RequestedLoras:
    """The LoRAs of one request: loading, then prepared (weights and prompt), then active."""

    asked: list[str]
    loading: list[Future[Lora]]
    ready: Future[dict[str, torch.Tensor]] | None = None
    staged: StagedWeights | None = None
    loras: LoraSet = ()
    arrived_at_step: int | None = None
    key: LoraSetKey = ()

    @property
    def is_felt(self) -> bool:
        return self.arrived_at_step is not None


class Loras(AddOn):
    """The add-on, also of requests without LoRAs, which need the weights without them.

    With `stacks`, those of the denoiser prepared for a device, whole stacks are merged at once.
    """

    def __init__(
        self,
        family: Family,
        loader: LoraLoader,
        max_staged: int = 4,
        *,
        stacks: WeightStacks | None = None,
    ) -> None:
        self._family, self._loader = family, loader
        layers = layers_of(family.pipeline)
        denoiser = {layer: module for layer, module in layers.items() if layer[0] in DENOISERS}
        text = {layer: module for layer, module in layers.items() if layer[0] not in DENOISERS}
        components = {layer[0] for layer in denoiser}
        self.weights, self._text = PatchedWeights(denoiser), PatchedWeights(text)
        if stacks is not None:
            self.weights = StackedWeights(denoiser, stacks, *components)
        self._staged: OrderedDict[Hashable, StagedWeights] = OrderedDict()
        self._max_staged = max_staged
        self._beside = ThreadPoolExecutor(1, thread_name_prefix="make-ready")

    def close(self) -> None:
        """Restore the original weights, and stop loading."""
        self.weights.use()
        self._beside.shutdown(cancel_futures=True)
        self._loader.close()

    # AddOn interface ------------------------------------------------------------------------------------------------

    def joined(self, run: DenoisingRun) -> None:
        wanted = run.extras[SLOT] = RequestedLoras([], [])
        for use in run.request.loras:
            wanted.loading.append(self._loader.load(use.name))
            wanted.asked.append(use.name)

    def is_ready(self, run: DenoisingRun) -> bool:
        wanted: RequestedLoras = run.extras[SLOT]
        if wanted.is_felt or not wanted.loading:
            return True
        if self._arrives(run, wanted):
            wanted.arrived_at_step = run.step
            return True
        return run.step < run.request.late_steps

    def bucket(self, run: DenoisingRun) -> Hashable:
        return self._key(run)

    @contextmanager
    def around(self, rows: BatchRows) -> Iterator[None]:
        self.weights.use(self._stage(rows.runs[0]))
        rows.addon_inputs.weights = self.weights.key
        yield

    def left(self, run: DenoisingRun) -> None:
        wanted: RequestedLoras | None = run.extras.pop(SLOT, None)
        for name in wanted.asked if wanted else ():
            self._loader.release(name)

    def _arrives(self, run: DenoisingRun, wanted: RequestedLoras) -> bool:
        """Whether the request can be computed with its LoRAs from now on; raises if loading failed."""
        if wanted.ready is None:
            if not all(loading.done() for loading in wanted.loading):
                return False
            loaded = [loading.result() for loading in wanted.loading]
            wanted.loras = tuple((lora, use.scale) for lora, use in zip(loaded, run.request.loras, strict=True))
            wanted.key = key_of(wanted.loras)
            wanted.ready = self._beside.submit(self._make_ready, run, wanted)
        if not wanted.ready.done():
            return False
        run.inputs.update(wanted.ready.result())
        return True

    def _make_ready(self, run: DenoisingRun, wanted: RequestedLoras) -> dict[str, torch.Tensor]:
        """Off the loop: compute the patched weights, and encode the prompt again if text encoders change."""
        if wanted.key not in self._staged:
            wanted.staged = self.weights.stage(wanted.loras)
        if all(lora.components <= set(DENOISERS) for lora, _ in wanted.loras):
            return {}
        with self._family.encoding, self._text.using(wanted.loras):
            return self._family.encode(run.request)

    def _stage(self, run: DenoisingRun) -> StagedWeights:
        key = self._key(run)
        if key not in self._staged:
            wanted: RequestedLoras = run.extras[SLOT]
            self._staged[key] = wanted.staged or self.weights.stage(wanted.loras if wanted.is_felt else ())
        self._staged.move_to_end(key)
        while len(self._staged) > self._max_staged:
            self._staged.popitem(last=False)
        return self._staged[key]

    def _key(self, run: DenoisingRun) -> LoraSetKey:
        wanted: RequestedLoras = run.extras[SLOT]
        return wanted.key if wanted.is_felt else ()
