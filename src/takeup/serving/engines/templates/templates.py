"""A template in memory: pages of its kept steps, which tokens they are good for, how wrong packing made them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from takeup.serving.engines.templates.packing import (
    PackedPage,
    PackedTensor,
    Page,
    choose_stride,
    error_of,
    pack,
    unpack,
    weights_between,
)

__all__ = ["Recorder", "Template"]


@dataclass(frozen=True)
class Template:
    """`pages` by step, those that were kept; `known`: tokens of the finest grid that were not edited themselves."""

    num_steps: int
    stride: int
    pages: dict[int, PackedPage]
    known: torch.Tensor
    error: float
    raw_bytes: int

    @cached_property
    def size_bytes(self) -> int:
        """In memory, and on disk but for the index."""
        return sum(packed.size_bytes for page in self.pages.values() for packed in page.values())

    def page(self, step: int) -> dict[str, torch.Tensor]:
        """Activations of a step by name. Exact ones are the template's own: copy before writing."""
        sources = weights_between(step, self.stride, self.num_steps)
        if len(sources) == 1:
            return {name: unpack(packed) for name, packed in self.pages[step].items()}
        (first, share), (second, other) = sources
        before, after = self.pages[first], self.pages[second]
        return {name: share * unpack(packed) + other * unpack(after[name]) for name, packed in before.items()}

    def to(self, device: torch.device | str) -> Template:
        """The same on another device."""
        moved = {
            step: {name: _moved(packed, device) for name, packed in page.items()} for step, page in self.pages.items()
        }
        return replace(self, pages=moved, known=self.known.to(device))


class Recorder:
    """Collects the pages of a run. `budget` is the relative error that packing may cause; zero keeps every bit."""

    def __init__(self, num_steps: int, known: torch.Tensor, budget: float = 0.0) -> None:
        self._num_steps, self._known, self._budget = num_steps, known, budget
        self._pages: list[PackedPage] = []
        self._raw_bytes, self._error = 0, 0.0
        self.size_bytes = 0

    @property
    def is_complete(self) -> bool:
        return len(self._pages) == self._num_steps

    def add(self, page: Page) -> None:
        """The next step."""
        packed = {name: pack(tensor, exact=self._budget == 0) for name, tensor in page.items()}
        if self._budget:
            self._error = max(self._error, error_of({name: unpack(one) for name, one in packed.items()}, page))
            if self._error > self._budget:  # eight bits are too few for this one
                packed = {name: pack(tensor, exact=True) for name, tensor in page.items()}
                self._error = 0.0
        self._raw_bytes += sum(tensor.numel() * tensor.element_size() for tensor in page.values())
        self.size_bytes += sum(one.size_bytes for one in packed.values())
        self._pages.append(packed)

    def finish(self) -> Template:
        """The template, packed as far as the budget allows."""
        stride, error = choose_stride(self._pages, self._budget - self._error) if self._budget else (1, 0.0)
        last = len(self._pages) - 1
        kept = {step: page for step, page in enumerate(self._pages) if step % stride == 0 or step == last}
        return Template(len(self._pages), stride, kept, self._known, self._error + error, self._raw_bytes)


def _moved(packed: PackedTensor, device: torch.device | str) -> PackedTensor:
    scales = None if packed.scales is None else _sent(packed.scales, device)
    return replace(packed, values=_sent(packed.values, device), scales=scales)


def _sent(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Down from a device into pinned memory, from which it can come up beside the computation."""
    if str(device) == "cpu" and tensor.device.type == "cuda":
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor)
    return tensor.to(device, non_blocking=True)
