"""Scheduler wrapper that preserves the image outside the mask: each step restores the noised original there."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch


class BlendingScheduler:
    """Wraps the scheduler of one run. `mask` is one where the image is generated, zero where it is preserved.

    The noised originals of all steps are precomputed: schedulers look up values in host tables, which would
    synchronize the device in every step.
    """

    def __init__(
        self,
        scheduler: Any,
        timesteps: list[torch.Tensor],
        clean: torch.Tensor,
        noise: torch.Tensor,
        mask: torch.Tensor,
    ) -> None:
        self._scheduler, self._mask = scheduler, mask
        self._kept = _kept(scheduler, timesteps, clean, noise)
        self._step = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def step(
        self, prediction: torch.Tensor, timestep: Any, latents: torch.Tensor, **options: Any
    ) -> tuple[torch.Tensor]:
        """Like `step` of the scheduler; returns the blended next latents."""
        made: torch.Tensor = self._scheduler.step(prediction, timestep, latents, **{**options, "return_dict": False})[0]
        kept = self._kept[self._step]
        self._step += 1
        return ((1 - self._mask) * kept.to(made.dtype) + self._mask * made,)


def _kept(
    scheduler: Any, timesteps: list[torch.Tensor], clean: torch.Tensor, noise: torch.Tensor
) -> list[torch.Tensor]:
    """The original after each step: with the noise level of the next step, and after the last without noise."""
    shadow, on_host, made = copy(scheduler), (clean.cpu(), noise.cpu()), []
    shadow.timesteps = scheduler.timesteps.cpu()
    for step, timestep in enumerate(timesteps[1:], start=1):
        if getattr(scheduler, "begin_index", None) is not None:
            shadow._step_index = scheduler.begin_index + step  # index of the scheduler at that step
        made.append(noised(shadow, *on_host, timestep.cpu()))
    return list(torch.split(torch.cat([*made, on_host[0]]).to(clean.device), len(clean)))


def noised(scheduler: Any, clean: torch.Tensor, noise: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
    """The image with the noise level of this timestep."""
    times = timestep.reshape(1)
    if hasattr(scheduler, "scale_noise"):
        flowing: torch.Tensor = scheduler.scale_noise(clean, times, noise)
        return flowing
    noisy: torch.Tensor = scheduler.add_noise(clean, noise, times)
    return noisy
