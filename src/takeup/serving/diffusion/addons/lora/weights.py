"""Unmerged LoRAs: each row of a call can use different ones, or none.

A layer y = W x that a LoRA changes becomes y = W x + factor * up (down x) for the rows that use it. Rows with the same
LoRA are computed together, so a call costs as many low-rank products as there are different LoRAs in it, not rows.
Changes that are not low-rank products (DoRA, LoHa, LoKr) are added as the difference of the weights, for those rows
only.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from takeup.serving.diffusion.addons.lora.targets import Layer, LayerId

# A LoRA ready for use: all its numbers in one flat buffer, and an index of the changes by layer -----------------------


@dataclass(frozen=True, slots=True)
class BufferSlice:
    """The offset and shape of one tensor in the buffer."""

    offset: int
    shape: tuple[int, ...]

    def of(self, buffer: torch.Tensor) -> torch.Tensor:
        """A view of the tensor."""
        return buffer[self.offset : self.offset + prod(self.shape)].view(self.shape)


@dataclass(frozen=True, slots=True)
class LayerChange:
    """The change of one layer: its tensors, the factor alpha / r, and the shape of its weights."""

    pieces: Mapping[str, BufferSlice]
    factor: float
    shape: tuple[int, ...]
    rank: int

    @property
    def is_low_rank(self) -> bool:
        """Whether it is a plain low-rank product, so that it can be computed unmerged."""
        return set(self.pieces) == {"down", "up"}


@dataclass(frozen=True, slots=True)
class Lora:
    """All changes of one file. The buffer can be in shared or pinned memory, and is transferred by one copy."""

    name: str
    buffer: torch.Tensor
    changes: Mapping[LayerId, LayerChange] = field(repr=False)

    @property
    def size_bytes(self) -> int:
        return self.buffer.nbytes

    @property
    def components(self) -> frozenset[str]:
        """The parts of the pipeline that it changes."""
        return frozenset(component for component, _ in self.changes)

    def parts(self, layer: LayerId) -> dict[str, torch.Tensor]:
        """The tensors of one layer, in single precision."""
        return {name: piece.of(self.buffer).float() for name, piece in self.changes[layer].pieces.items()}

    def delta(self, layer: LayerId, scale: float) -> torch.Tensor:
        """The weight delta, before any magnitude is applied."""
        change, parts = self.changes[layer], self.parts(layer)
        return _product(parts, change.shape) * (change.factor * scale)


def patched(weight: torch.Tensor, layer: LayerId, loras: tuple[tuple[Lora, float], ...]) -> torch.Tensor:
    """The weights of a layer with these LoRAs applied in order, in single precision."""
    result = weight.float()
    for lora, scale in loras:
        if layer not in lora.changes:
            continue
        result = result + lora.delta(layer, scale).to(result.device)
        for part, side in (("magnitude", 0), ("input_magnitude", 1)):
            if part in lora.changes[layer].pieces:
                result = _rescaled(result, lora.parts(layer)[part].to(result.device), side)
    return result


def _rescaled(weight: torch.Tensor, lengths: torch.Tensor, side: int) -> torch.Tensor:
    """Rescale the weights to these norms for every output (side 0) or input (side 1)."""
    shape = [-1 if dimension == side else 1 for dimension in range(weight.ndim)]
    others = [dimension for dimension in range(weight.ndim) if dimension != side]
    norms: torch.Tensor = torch.linalg.vector_norm(weight, dim=others)
    return lengths.reshape(shape) / norms.view(shape) * weight


def _product(parts: Mapping[str, torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    if "down" in parts:
        return _low_rank(parts["down"], parts["up"], shape)
    if "hada_w1_a" in parts:
        first, second = (parts[f"hada_w{one}_a"] @ parts[f"hada_w{one}_b"] for one in (1, 2))
        return (first * second).reshape(shape)
    return _kronecker(_whole(parts, "lokr_w1"), _whole(parts, "lokr_w2")).reshape(shape)


def _low_rank(down: torch.Tensor, up: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    if len(shape) == 4 and shape[2:] != (1, 1):
        return torch.nn.functional.conv2d(down.transpose(0, 1), up).transpose(0, 1)
    return (up.flatten(1) @ down.flatten(1)).reshape(shape)


def _whole(parts: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    return parts[name] if name in parts else parts[f"{name}_a"] @ parts[f"{name}_b"]


def _kronecker(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    if second.ndim == 4 and first.ndim == 2:
        first = first[:, :, None, None]
    return torch.kron(first, second.contiguous())


# Weights into which LoRAs are merged and from which they are removed exactly ------------------------------------------
#
# How it works. Of every layer that a LoRA changes, a pristine copy is kept from before the first change. Patched
# weights
# are always computed from that copy, in single precision, and rounded once; a patch is never subtracted, so nothing
# drifts, however often sets change. `stage` computes a set into a separate buffer, concurrently with the running
# network;
# `use` copies it over the weights. It writes into the storage of the parameters and never replaces them, since a CUDA
# graph holds the addresses of weights: after `use` a captured graph computes with the new ones.

LoraSet = tuple[tuple[Lora, float], ...]
"""LoRAs in the order in which they are applied, each with its scale."""

LoraSetKey = tuple[tuple[str, int, float], ...]


@dataclass(frozen=True, slots=True)
class StagedWeights:
    """The patched weights of one set, ready to be copied over those of the network."""

    loras: LoraSet
    weights: Mapping[LayerId, torch.Tensor] = field(repr=False)


NO_LORAS = StagedWeights((), {})


def key_of(loras: LoraSet) -> LoraSetKey:
    """Equal for equal sets. A LoRA that was reloaded under an old name has a different key."""
    return tuple((lora.name, id(lora), scale) for lora, scale in loras)


class PatchedWeights:
    """The layers of some components of a pipeline. Call `stage` from any thread, the rest from the computing one."""

    def __init__(self, layers: Mapping[LayerId, Layer]) -> None:
        self._layers = layers
        self._pristine: dict[LayerId, torch.Tensor] = {}
        self._lock = threading.Lock()
        self._current = NO_LORAS

    @property
    def key(self) -> LoraSetKey:
        """The key of the set that is merged now."""
        return key_of(self._current.loras)

    def stage(self, loras: LoraSet) -> StagedWeights:
        """Compute the patched weights of every layer that one of `loras` changes, without modifying the network."""
        return StagedWeights(loras, self._patched(loras, self._changed(loras)))

    def use(self, staged: StagedWeights = NO_LORAS) -> None:
        """Merge this set and remove the previous one. Without an argument: restore the original weights."""
        if staged is self._current:
            return
        self._take_out(staged)
        self._put_in(staged)
        self._current = staged

    @contextmanager
    def using(self, loras: LoraSet) -> Iterator[None]:
        """Patched inside, restored on exit, also after an exception."""
        before = self._current
        self.use(self.stage(loras))
        try:
            yield
        finally:
            self.use(before)

    def _take_out(self, next_one: StagedWeights) -> None:
        for layer in self._current.weights.keys() - next_one.weights.keys():
            self._write(layer, self._clean(layer))

    def _put_in(self, staged: StagedWeights) -> None:
        for layer, weight in staged.weights.items():
            self._write(layer, weight)

    def _changed(self, loras: LoraSet) -> set[LayerId]:
        return {layer for lora, _ in loras for layer in lora.changes if layer in self._layers}

    def _patched(self, loras: LoraSet, layers: set[LayerId]) -> dict[LayerId, torch.Tensor]:
        clean = {layer: self._clean(layer) for layer in sorted(layers)}
        return {layer: patched(weight, layer, loras).to(weight.dtype) for layer, weight in clean.items()}

    def _clean(self, layer: LayerId) -> torch.Tensor:
        with self._lock:
            if layer not in self._pristine:  # then it is not patched yet
                self._pristine[layer] = self._parameter(layer).detach().clone()
            return self._pristine[layer]

    @torch.no_grad()
    def _write(self, layer: LayerId, weight: torch.Tensor) -> None:
        self._parameter(layer).copy_(weight)

    def _parameter(self, layer: LayerId) -> torch.Tensor:
        return self._layers[layer].weight


Groups = list[tuple[LoraSet, torch.Tensor]]
Parts = dict[LayerId, dict[str, torch.Tensor]]
"""The thin matrices of one LoRA by layer, where the layer is and in its type."""


class Sidecar:
    """Adds LoRAs to the layers of a denoiser through hooks, registered only during calls that need them.

    The tensors of the `max_kept` most recently used LoRAs stay on the device.
    """

    def __init__(self, layers: Mapping[LayerId, Layer], max_kept: int = 8) -> None:
        self._layers, self._max_kept = layers, max_kept
        self._kept: OrderedDict[int, tuple[Lora, Parts]] = OrderedDict()

    @contextmanager
    def applied(self, sets: Sequence[LoraSet]) -> Iterator[None]:
        """Inside, row i of the network's input is computed with the LoRAs of `sets[i]`."""
        groups = _groups(sets, next(iter(self._layers.values())).weight.device)
        changed = {layer for loras, _ in groups for lora, _ in loras for layer in lora.changes if layer in self._layers}
        parts = self._parts({id(lora): lora for loras, _ in groups for lora, _ in loras})
        hooks = [  # first, so that other hooks see the layer's complete output
            self._layers[layer].register_forward_hook(_adding(layer, groups, parts), prepend=True) for layer in changed
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _parts(self, loras: Mapping[int, Lora]) -> Mapping[int, Parts]:
        """The device tensors cached for these LoRAs; hooks fill them lazily, layer by layer."""
        for number, lora in loras.items():
            self._kept.setdefault(number, (lora, {}))
            self._kept.move_to_end(number)
        while len(self._kept) > max(self._max_kept, len(loras)):
            self._kept.popitem(last=False)
        return {number: self._kept[number][1] for number in loras}


def _groups(sets: Sequence[LoraSet], device: torch.device) -> Groups:
    """The rows of every distinct set; rows without LoRAs are in none."""
    rows: dict[tuple[tuple[int, float], ...], tuple[LoraSet, list[int]]] = {}
    for row, loras in enumerate(sets):
        key = tuple((id(lora), scale) for lora, scale in loras)
        if key:
            rows.setdefault(key, (loras, []))[1].append(row)
    return [(loras, torch.tensor(members, device=device)) for loras, members in rows.values()]


def _adding(layer: LayerId, groups: Groups, parts: Mapping[int, Parts]) -> Any:
    def add(module: Layer, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
        for loras, rows in groups:
            if any(layer in lora.changes for lora, _ in loras):
                change = _change(module, layer, loras, inputs[0][rows], parts)
                output = output.index_add(0, rows, change.to(output.dtype))
        return output

    return add


def _change(module: Layer, layer: LayerId, loras: LoraSet, x: torch.Tensor, parts: Mapping[int, Parts]) -> torch.Tensor:
    """The change of the layer's output by these LoRAs for the input `x`."""
    own = [(lora, scale) for lora, scale in loras if layer in lora.changes]
    if all(lora.changes[layer].is_low_rank for lora, _ in own):
        changes = [
            _low_rank_product(module, _parts_on_device(layer, lora, x, parts), lora.changes[layer].factor * scale, x)
            for lora, scale in own
        ]
        return torch.stack(changes).sum(0) if len(changes) > 1 else changes[0]
    weight = module.weight
    difference = patched(weight, layer, loras) - weight.float()
    return _apply(module, difference.to(x.dtype), x)


def _parts_on_device(
    layer: LayerId, lora: Lora, x: torch.Tensor, parts: Mapping[int, Parts]
) -> dict[str, torch.Tensor]:
    own = parts[id(lora)]
    if layer not in own or own[layer]["down"].dtype != x.dtype or own[layer]["down"].device != x.device:
        own[layer] = {name: part.to(x) for name, part in lora.parts(layer).items()}
    return own[layer]


def _low_rank_product(module: Layer, parts: Mapping[str, torch.Tensor], factor: float, x: torch.Tensor) -> torch.Tensor:
    if isinstance(module, torch.nn.Conv2d):
        down, up = (part if part.ndim == 4 else part[:, :, None, None] for part in (parts["down"], parts["up"]))
        return torch.conv2d(_apply(module, down, x), up) * factor
    return (x @ parts["down"].flatten(1).T) @ parts["up"].flatten(1).T * factor


def _apply(module: Layer, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Apply the layer with other weights and without its bias."""
    if isinstance(module, torch.nn.Conv2d):
        return torch.conv2d(x, weight, None, module.stride, module.padding, module.dilation)
    return torch.nn.functional.linear(x, weight)
