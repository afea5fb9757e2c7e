"""LoRAs as numbers: the changes of one file by layer, and the weights that they are merged into and removed from.

Sets of LoRAs are merged in turn: one call, and one rewriting of the weights, for every distinct set. Computing them
unmerged, with rows of one call using different sets, was measured to be slower on every device with CUDA graphs.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod

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
        """Whether it is a plain low-rank product."""
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
# weights are always computed from that copy, in single precision, and rounded once; a patch is never subtracted, so
# nothing drifts, however often sets change. `stage` computes a set into a separate buffer, concurrently with the
# running network; `use` copies it over the weights. It writes into the storage of the parameters and never replaces
# them, since a CUDA graph holds the addresses of weights: after `use` a captured graph computes with the new ones.

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
