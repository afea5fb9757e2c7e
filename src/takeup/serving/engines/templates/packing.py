"""Smaller templates: numbers of eight bits with a scale for each group of channels, and steps between which to guess.

Activations change slowly from step to step. With a stride of k, every k-th step is kept, and what lies between two of
them is their mean, weighted by the distance. Errors are measured while packing, relative to the size of what is packed
(root mean square), and the longest stride within the budget is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

__all__ = ["STRIDES", "PackedPage", "PackedTensor", "choose_stride", "error_of", "pack", "unpack", "weights_between"]

STRIDES = (16, 8, 6, 4, 3, 2)
GROUP = 64
"""Channels that share a scale: a head, in most networks."""
HIGHEST = 127
SMALLEST = 1e-30

Page = Mapping[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """Either plain values without scales, or whole numbers with a scale for each row, token and group of channels."""

    values: torch.Tensor
    scales: torch.Tensor | None
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def size_bytes(self) -> int:
        """Of values and scales."""
        parts = [self.values] if self.scales is None else [self.values, self.scales]
        return sum(part.numel() * part.element_size() for part in parts)


PackedPage = dict[str, PackedTensor]


def pack(tensor: torch.Tensor, *, exact: bool) -> PackedTensor:
    """As it is, or in eight bits."""
    if exact:
        return PackedTensor(tensor.contiguous(), None, tuple(tensor.shape), tensor.dtype)
    groups = _grouped(tensor)
    # bfloat16: scales of half precision would be zero for small activations
    scales = (groups.abs().amax(dim=-1, keepdim=True).float() / HIGHEST).clamp(min=SMALLEST).to(torch.bfloat16)
    whole = (groups.float() / scales.float()).round().clamp(-HIGHEST, HIGHEST).to(torch.int8)
    return PackedTensor(whole, scales, tuple(tensor.shape), tensor.dtype)


def unpack(packed: PackedTensor) -> torch.Tensor:
    """What was packed, as far as it is still known."""
    if packed.scales is None:
        return packed.values
    return (packed.values.to(packed.dtype) * packed.scales.to(packed.dtype)).view(packed.shape)


def weights_between(step: int, stride: int, num_steps: int) -> list[tuple[int, float]]:
    """The kept steps a step is made of, each with its weight."""
    before = step - step % stride
    after = min(before + stride, num_steps - 1)
    if step in (before, after) or after == before:
        return [(step, 1.0)]
    share = (step - before) / (after - before)
    return [(before, 1 - share), (after, share)]


def error_of(ours: Page, theirs: Page) -> float:
    """The largest error of a tensor, relative to its size."""
    return max((_relative(ours[name], theirs[name]) for name in theirs), default=0.0)


def choose_stride(pages: Sequence[PackedPage], budget: float) -> tuple[int, float]:
    """The longest stride whose error stays below the budget, and this error."""
    for stride in STRIDES:
        if stride < len(pages):
            error = _stride_error(pages, stride, budget)
            if error <= budget:
                return stride, error
    return 1, 0.0


def _stride_error(pages: Sequence[PackedPage], stride: int, budget: float) -> float:
    """Stops as soon as the budget is spent."""
    worst = 0.0
    for step, page in enumerate(pages):
        sources = weights_between(step, stride, len(pages))
        if len(sources) > 1:
            for name, packed in page.items():
                guessed = sum(weight * unpack(pages[source][name]) for source, weight in sources)
                assert isinstance(guessed, torch.Tensor)
                worst = max(worst, _relative(guessed, unpack(packed)))
                if worst > budget:
                    return worst
    return worst


def _relative(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm().clamp(min=1e-12))


def _grouped(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.flatten(2)
    width = flat.shape[-1]
    return flat.reshape(*flat.shape[:-1], -1, GROUP if width % GROUP == 0 else width)
