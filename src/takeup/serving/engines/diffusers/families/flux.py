"""Flux: a flow-matching transformer with the guidance scale as an input; a negative branch is optional."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from takeup.serving.engines.diffusers.families.flows import FlowTransformer
from takeup.serving.engines.diffusers.families.guidance import guided
from takeup.serving.engines.diffusers.families.sizes import size_of
from takeup.serving.engines.diffusers.runs import BatchRows, DenoisingRun
from takeup.serving.engines.diffusers.schedulers import new_scheduler, set_steps
from takeup.serving.model import Request


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
