"""A scheduler that keeps the image outside the mask: after every step the rest is the original, with its own noise."""

from __future__ import annotations

from typing import Any

import torch

__all__ = ["Blended", "noised"]


class Blended:
    """Wraps the scheduler of one run. `mask` is one where the image is made, zero where it is kept."""

    def __init__(
        self,
        scheduler: Any,
        timesteps: list[torch.Tensor],
        clean: torch.Tensor,
        noise: torch.Tensor,
        mask: torch.Tensor,
    ) -> None:
        self._scheduler, self._timesteps = scheduler, timesteps
        self._clean, self._noise, self._mask = clean, noise, mask
        self._step = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def step(
        self, prediction: torch.Tensor, timestep: Any, latents: torch.Tensor, **options: Any
    ) -> tuple[torch.Tensor]:
        """As that of the scheduler; what it answers is the next latents."""
        made: torch.Tensor = self._scheduler.step(prediction, timestep, latents, **{**options, "return_dict": False})[0]
        self._step += 1
        kept = self._clean
        if self._step < len(self._timesteps):
            kept = noised(self._scheduler, self._clean, self._noise, self._timesteps[self._step])
        return ((1 - self._mask) * kept.to(made.dtype) + self._mask * made,)


def noised(scheduler: Any, clean: torch.Tensor, noise: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
    """The image with as much noise as there is before this timestep."""
    times = timestep.reshape(1)
    if hasattr(scheduler, "scale_noise"):
        flowing: torch.Tensor = scheduler.scale_noise(clean, times, noise)
        return flowing
    noisy: torch.Tensor = scheduler.add_noise(clean, noise, times)
    return noisy
