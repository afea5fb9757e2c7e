"""Pixels beside a mask, out of the packed maps of a whole step: all that convolutions need of them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from takeup.serving.engines.diffusers.masked.pages import Page
from takeup.serving.engines.templates.packing import GROUP

__all__ = ["Rims"]


class Rims:
    """`rims`: for every map of the page, which pixels of its flattened rows are taken. `views` has them by name."""

    def __init__(self, page: Page, rims: Mapping[str, torch.Tensor]) -> None:
        like = next(iter(page.values()))
        self._chunk = math.gcd(GROUP, *(kept.shape[2] for kept in page.values()))
        parts, first = [], 0
        for name, kept in page.items():
            per_pixel = kept.shape[2] // self._chunk
            pieces = torch.arange(per_pixel, device=like.device)
            parts.append((first + rims[name][:, None] * per_pixel + pieces).flatten())
            first += kept.numel() // self._chunk
        self._pieces = torch.cat(parts)
        self.values = torch.empty(len(self._pieces), self._chunk, dtype=like.dtype, device=like.device)
        split = torch.split(self.values, [len(part) for part in parts])
        self.views = {name: part.view(-1, page[name].shape[2]) for name, part in zip(page, split, strict=True)}

    def cut(self, whole: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The pixels with their scales, wherever the maps are."""
        pieces = self._pieces.to(whole.device)
        return whole.view(-1, self._chunk)[pieces], scales.view(-1, 1)[pieces // (GROUP // self._chunk)]

    def fill(self, whole: torch.Tensor, scales: torch.Tensor) -> None:
        """From what was cut."""
        torch.mul(whole, scales.to(self.values.dtype), out=self.values)
