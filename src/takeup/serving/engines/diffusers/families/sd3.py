"""Stable Diffusion 3: a transformer that predicts a flow, three text encoders, guided by a negative branch."""

from __future__ import annotations

from typing import Any

import torch

from takeup.serving.engines.diffusers.families.flows import FlowTransformer
from takeup.serving.engines.diffusers.families.guidance import guided
from takeup.serving.engines.diffusers.families.sizes import size_of
from takeup.serving.engines.diffusers.runs import BatchRows, DenoisingRun
from takeup.serving.engines.diffusers.schedulers import new_scheduler, set_steps, step_options
from takeup.serving.model import Request


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
