"""A LoRA ready for use: all its numbers in one flat buffer, and an index of the changes by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import torch

from takeup.serving.engines.diffusers.lora.targets import LayerId


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
