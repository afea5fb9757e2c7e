"""Common base of Stable Diffusion 3 and Flux: a flow-matching transformer with a schedule shift."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any

import torch

from takeup.serving.engines.diffusers.device.layout import DeviceAndDtype, device_and_dtype
from takeup.serving.engines.diffusers.device.quiet import CAPTURE_LOCK
from takeup.serving.engines.diffusers.runs import DenoisingRun

SHIFTED = "diffusers.pipelines.flux.pipeline_flux"


class FlowTransformer:
    """A pipeline whose denoiser is a transformer. `most_shift`: default of `max_shift`, for the largest image."""

    most_shift: float

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self.encoding = threading.RLock()

    @property
    def network(self) -> Any:
        return self.pipeline.transformer

    @property
    def where(self) -> DeviceAndDtype:
        """The device and dtype of the network."""
        return device_and_dtype(self.network)

    @torch.no_grad()
    @CAPTURE_LOCK.shared()
    def decode(self, run: DenoisingRun) -> torch.Tensor:
        vae = self.pipeline.vae
        latents = self._unpacked(run) / vae.config.scaling_factor + vae.config.shift_factor
        decoded: torch.Tensor = self.pipeline.image_processor.postprocess(
            vae.decode(latents, return_dict=False)[0], output_type="pt"
        )
        return decoded

    def _unpacked(self, run: DenoisingRun) -> torch.Tensor:
        """Latents as an image."""
        return run.latents

    def _shift(self, scheduler: Any, num_tokens: int) -> float:
        """The schedule shift: larger images keep their noise for longer."""
        named = (
            ("base_image_seq_len", 256),
            ("max_image_seq_len", 4096),
            ("base_shift", 0.5),
            ("max_shift", self.most_shift),
        )
        settings = (scheduler.config.get(*name) for name in named)
        shift: float = import_module(SHIFTED).calculate_shift(num_tokens, *settings)
        return shift
