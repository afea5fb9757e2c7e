"""One call of a ControlNet: its inputs, its computation, and the order in which its residuals are used.

The denoiser adds residuals in its decoder: first that of the mid block, then those of the skips from the last to the
first. So residuals are numbered in *decoder order*: 0 is the mid block, 1 the last skip, and so on. Workers send them
in this order, and the decoder starts when the first few have arrived.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class ControlCall:
    """The rows of one step that one ControlNet acts on. `images`: the keys of their images, in order."""

    tensors: Mapping[str, torch.Tensor]
    images: tuple[int, ...]


class ControlNet:
    """A ControlNet and its registered images, each embedded once instead of once in every step."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self._embed = module.controlnet_cond_embedding
        self._images: dict[int, torch.Tensor] = {}

    @property
    def knows(self) -> set[int]:
        """The keys of the registered images."""
        return set(self._images)

    @torch.no_grad()
    def remember(self, key: int, image: torch.Tensor) -> None:
        """Embed an image; `image` has a row for every row of the request, as in the calls that follow."""
        flipped = torch.flip(image, dims=[1]) if self._is_bgr() else image
        embedding = self._embed(flipped)
        # The module flips the channels of its input, so flip them once more here.
        self._images[key] = torch.flip(embedding, dims=[1]) if self._is_bgr() else embedding

    def forget(self, key: int) -> None:
        """Drop the embedding of this image."""
        self._images.pop(key, None)

    @torch.no_grad()
    def residuals(self, call: ControlCall) -> list[torch.Tensor]:
        """All residuals in decoder order, not scaled yet."""
        return self.compute(call.tensors, self.embedded(call.images))

    def embedded(self, images: Sequence[int]) -> torch.Tensor:
        """The embeddings of these images, concatenated along the batch dimension."""
        return torch.cat([self._images[key] for key in images])

    @torch.no_grad()
    def compute(self, inputs: Mapping[str, torch.Tensor], embedded: torch.Tensor) -> list[torch.Tensor]:
        """The same for images that are already embedded."""
        tensors = dict(inputs)
        added = {name: tensors.pop(name) for name in ("text_embeds", "time_ids") if name in tensors}
        self.module.controlnet_cond_embedding = torch.nn.Identity()
        try:
            skips, middle = self.module(
                **tensors,
                controlnet_cond=embedded,
                conditioning_scale=_UnitScale(),
                added_cond_kwargs=added or None,
                return_dict=False,
            )
        finally:
            self.module.controlnet_cond_embedding = self._embed
        return [middle, *reversed(skips)]

    def _is_bgr(self) -> bool:
        return bool(self.module.config.controlnet_conditioning_channel_order == "bgr")


class _UnitScale:
    """A scale of one that costs no pass over memory: ControlNets multiply all their outputs by the scale."""

    def __rmul__(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def scales_of(scale: float, num_residuals: int, guess_mode: bool) -> Sequence[float | torch.Tensor]:
    """The scale of every residual in decoder order; guess mode weakens those of the early skips."""
    if not guess_mode:
        return [scale] * num_residuals
    rising = torch.logspace(-1, 0, num_residuals) * scale
    return list(rising.flip(0))
