"""Stable Diffusion 3 and Flux: flow-matching transformers with a schedule shift.

Stable Diffusion 3 has three text encoders and is guided by a negative branch. Flux takes the guidance scale as an
input; a negative branch is optional.
"""

import threading
from importlib import import_module
from typing import Any

import numpy as np
import torch

from takeup.serving.diffusion.contract import BatchRows, DenoisingRun
from takeup.serving.diffusion.engine.sampling import guided, new_scheduler, set_steps, size_of, step_options
from takeup.serving.diffusion.execution.capture_lock import CAPTURE_LOCK
from takeup.serving.diffusion.execution.convolutions import DeviceAndDtype, device_and_dtype
from takeup.serving.model import Request

# Common base of Stable Diffusion 3 and Flux: a flow-matching transformer with a schedule shift ------------------------

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


# Stable Diffusion 3: a transformer that predicts a flow, three text encoders, guided by a negative branch -------------


class StableDiffusion3(FlowTransformer):
    """Stable Diffusion 3 and 3.5."""

    most_shift = 1.16

    @torch.no_grad()
    def prepare(self, request: Request) -> DenoisingRun:
        with self.encoding:
            inputs = self.encode(request)
        generator = torch.Generator("cpu").manual_seed(request.seed)
        height, width = size_of(self.pipeline, request)
        device, dtype = self.where
        latents = self.pipeline.prepare_latents(
            1, self.network.config.in_channels, height, width, dtype, device, generator
        )
        scheduler = new_scheduler(self.pipeline, request.scheduler)
        shift = self._shifted(scheduler, latents)
        timesteps = set_steps(scheduler, request.num_steps, device, **shift)
        options = step_options(scheduler, request, generator)
        return DenoisingRun(request, latents, scheduler, timesteps, inputs, step_options=options)

    @torch.no_grad()
    def encode(self, request: Request) -> dict[str, torch.Tensor]:
        with_branches = request.guidance > 1
        positive, negative, pooled, negative_pooled = self.pipeline.encode_prompt(
            prompt=request.prompt,
            prompt_2=None,
            prompt_3=None,
            negative_prompt=request.negative_prompt,
            do_classifier_free_guidance=with_branches,
            device=self.where[0],
        )
        if not with_branches:
            return {"encoder_hidden_states": positive, "pooled_projections": pooled}
        return {
            "encoder_hidden_states": torch.cat([negative, positive]),
            "pooled_projections": torch.cat([negative_pooled, pooled]),
        }

    @torch.no_grad()
    def predict(self, rows: BatchRows) -> torch.Tensor:
        prediction: torch.Tensor = self.network(
            hidden_states=rows.sample, timestep=rows.timestep, **rows.inputs, return_dict=False
        )[0]
        return prediction

    def guide(self, run: DenoisingRun, prediction: torch.Tensor) -> torch.Tensor:
        return guided(prediction, run.request.guidance)

    def _shifted(self, scheduler: Any, latents: torch.Tensor) -> dict[str, float]:
        """The shift for schedulers that depend on the image size."""
        if not scheduler.config.get("use_dynamic_shifting", None):
            return {}
        patch = self.network.config.patch_size
        return {"mu": self._shift(scheduler, (latents.shape[2] // patch) * (latents.shape[3] // patch))}


# Flux: a flow-matching transformer with the guidance scale as an input; a negative branch is optional -----------------


class Flux(FlowTransformer):
    """Flux dev and schnell. A negative prompt is one more row, where the pipeline calls the network twice."""

    most_shift = 1.15

    @torch.no_grad()
    def prepare(self, request: Request) -> DenoisingRun:
        with self.encoding:
            inputs = self.encode(request)
        generator = torch.Generator("cpu").manual_seed(request.seed)
        height, width = size_of(self.pipeline, request)
        channels = self.network.config.in_channels // 4
        device, dtype = self.where
        latents, image_ids = self.pipeline.prepare_latents(1, channels, height, width, dtype, device, generator)
        text_ids = torch.zeros(inputs["encoder_hidden_states"].shape[1], 3).to(image_ids)
        scheduler = new_scheduler(self.pipeline, request.scheduler)
        timesteps = self._timesteps(scheduler, request.num_steps, latents)
        return DenoisingRun(request, latents, scheduler, timesteps, inputs, {"img_ids": image_ids, "txt_ids": text_ids})

    @torch.no_grad()
    def encode(self, request: Request) -> dict[str, torch.Tensor]:
        branches = [request.prompt]
        if request.true_guidance > 1 and request.negative_prompt is not None:
            branches.insert(0, request.negative_prompt)
        encoded = [self.pipeline.encode_prompt(prompt=text, prompt_2=None) for text in branches]
        inputs = {
            "encoder_hidden_states": torch.cat([one[0] for one in encoded]),
            "pooled_projections": torch.cat([one[1] for one in encoded]),
        }
        if self.network.config.guidance_embeds:
            inputs["guidance"] = torch.full([len(branches)], request.guidance, device=self.where[0])
        return inputs

    @torch.no_grad()
    def predict(self, rows: BatchRows) -> torch.Tensor:
        prediction: torch.Tensor = self.network(
            hidden_states=rows.sample,
            timestep=rows.timestep.to(rows.sample.dtype) / 1000,
            guidance=rows.inputs.get("guidance"),
            encoder_hidden_states=rows.inputs["encoder_hidden_states"],
            pooled_projections=rows.inputs["pooled_projections"],
            **rows.shared,
            return_dict=False,
        )[0]
        return prediction

    def guide(self, run: DenoisingRun, prediction: torch.Tensor) -> torch.Tensor:
        return guided(prediction, run.request.true_guidance)

    def _unpacked(self, run: DenoisingRun) -> torch.Tensor:
        height, width = size_of(self.pipeline, run.request)
        latents: torch.Tensor = self.pipeline._unpack_latents(
            run.latents, height, width, self.pipeline.vae_scale_factor
        )
        return latents

    def _timesteps(self, scheduler: Any, num_steps: int, latents: torch.Tensor) -> list[torch.Tensor]:
        shift = self._shift(scheduler, latents.shape[1])
        sigmas = np.linspace(1.0, 1 / num_steps, num_steps)
        return set_steps(scheduler, num_steps, latents.device, sigmas=sigmas, mu=shift)
