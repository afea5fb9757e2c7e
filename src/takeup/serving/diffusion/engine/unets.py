"""Stable Diffusion 1.5 and XL: a U-Net that predicts noise, guided by a negative branch."""

import threading
from importlib import import_module
from typing import Any

import torch

from takeup.serving.diffusion.contract import BatchRows, DenoisingRun
from takeup.serving.diffusion.engine.sampling import guided, new_scheduler, set_steps, size_of, step_options
from takeup.serving.diffusion.execution.capture_lock import CAPTURE_LOCK
from takeup.serving.diffusion.execution.convolutions import DeviceAndDtype, device_and_dtype
from takeup.serving.model import Request


class StableDiffusion:
    """Stable Diffusion 1.5: one text encoder."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self.encoding = threading.RLock()

    @property
    def network(self) -> Any:
        return self.pipeline.unet

    @property
    def where(self) -> DeviceAndDtype:
        """The device and dtype of the network."""
        return device_and_dtype(self.network)

    @torch.no_grad()
    def prepare(self, request: Request) -> DenoisingRun:
        with self.encoding:
            inputs = self.encode(request)
        # Sample noise while the device encodes the text; timesteps come afterwards: copying them waits for it.
        generator = torch.Generator("cpu").manual_seed(request.seed)
        scheduler = new_scheduler(self.pipeline, request.scheduler)
        noise = self._noise(request, generator)
        timesteps = set_steps(scheduler, request.num_steps, self.where[0])
        latents = noise * scheduler.init_noise_sigma
        options = step_options(scheduler, request, generator)
        return DenoisingRun(request, latents, scheduler, timesteps, inputs, step_options=options)

    @torch.no_grad()
    def encode(self, request: Request) -> dict[str, torch.Tensor]:
        positive, negative = self.pipeline.encode_prompt(
            request.prompt, self.where[0], 1, self._has_branches(request), request.negative_prompt
        )
        return {**self._guidance_input(request), "encoder_hidden_states": _branches(negative, positive)}

    @torch.no_grad()
    def predict(self, rows: BatchRows) -> torch.Tensor:
        prediction: torch.Tensor = self.network(
            rows.sample,
            rows.timestep,
            encoder_hidden_states=rows.inputs["encoder_hidden_states"],
            timestep_cond=rows.inputs.get("timestep_cond"),
            added_cond_kwargs=self.added(rows.inputs),
            return_dict=False,
        )[0]
        return prediction

    def added(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor] | None:
        """Additional conditioning inputs; None in this family."""
        return None

    def guide(self, run: DenoisingRun, prediction: torch.Tensor) -> torch.Tensor:
        return guided(prediction, run.request.guidance, run.request.guidance_rescale)

    @torch.no_grad()
    @CAPTURE_LOCK.shared()
    def decode(self, run: DenoisingRun) -> torch.Tensor:
        vae = self.pipeline.vae
        image = vae.decode((run.latents / vae.config.scaling_factor).to(vae.dtype), return_dict=False)[0]
        decoded: torch.Tensor = self.pipeline.image_processor.postprocess(image, output_type="pt")
        return decoded

    def _has_branches(self, request: Request) -> bool:
        return request.guidance > 1 and self.network.config.time_cond_proj_dim is None

    def _guidance_input(self, request: Request) -> dict[str, torch.Tensor]:
        """The guidance-scale embedding, for guidance-distilled models."""
        if self.network.config.time_cond_proj_dim is None:
            return {}
        scale = torch.tensor([request.guidance - 1])
        embedding = self.pipeline.get_guidance_scale_embedding(scale, self.network.config.time_cond_proj_dim)
        return {"timestep_cond": embedding.to(*self.where)}

    def _noise(self, request: Request, generator: torch.Generator) -> torch.Tensor:
        height, width = size_of(self.pipeline, request)
        factor = self.pipeline.vae_scale_factor
        shape = (1, self.network.config.in_channels, height // factor, width // factor)
        draw = import_module("diffusers.utils.torch_utils").randn_tensor
        device, dtype = self.where
        noise: torch.Tensor = draw(shape, generator=generator, device=device, dtype=dtype)
        return noise


class StableDiffusionXL(StableDiffusion):
    """Stable Diffusion XL: two text encoders, and the image sizes as inputs.

    Its VAE decoder overflows in half precision. Pipelines convert it to single precision for every image and back; here
    images are decoded in several threads, so it stays in single precision.
    """

    def __init__(self, pipeline: Any) -> None:
        super().__init__(pipeline)
        if pipeline.vae.dtype == torch.float16 and pipeline.vae.config.force_upcast:
            pipeline.vae.to(torch.float32)

    @torch.no_grad()
    def encode(self, request: Request) -> dict[str, torch.Tensor]:
        positive, negative, pooled, negative_pooled = self.pipeline.encode_prompt(
            prompt=request.prompt,
            device=self.where[0],
            num_images_per_prompt=1,
            do_classifier_free_guidance=self._has_branches(request),
            negative_prompt=request.negative_prompt,
        )
        embeddings = _branches(negative, positive)
        # Non-blocking only on CUDA, which stages pageable memory; unknown for other devices.
        sizes = self._sizes(request, pooled).to(embeddings, non_blocking=embeddings.is_cuda)
        return {
            **self._guidance_input(request),
            "encoder_hidden_states": embeddings,
            "text_embeds": _branches(negative_pooled, pooled),
            "time_ids": sizes.repeat(len(embeddings), 1),
        }

    def added(self, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The pooled text embedding and the sizes."""
        return {"text_embeds": inputs["text_embeds"], "time_ids": inputs["time_ids"]}

    @torch.no_grad()
    @CAPTURE_LOCK.shared()
    def decode(self, run: DenoisingRun) -> torch.Tensor:
        vae = self.pipeline.vae
        mean, spread = (getattr(vae.config, name, None) for name in ("latents_mean", "latents_std"))
        latents = run.latents
        if mean is not None and spread is not None:
            mean, spread = (torch.tensor(values).view(1, -1, 1, 1).to(latents) for values in (mean, spread))
            latents = latents * spread / vae.config.scaling_factor + mean
        else:
            latents = latents / vae.config.scaling_factor
        image = vae.decode(latents.to(vae.dtype), return_dict=False)[0]
        decoded: torch.Tensor = self.pipeline.image_processor.postprocess(image, output_type="pt")
        return decoded

    def _sizes(self, request: Request, pooled: torch.Tensor) -> torch.Tensor:
        size = size_of(self.pipeline, request)
        width = pooled.shape[-1]
        sizes: torch.Tensor = self.pipeline._get_add_time_ids(
            size, (0, 0), size, dtype=pooled.dtype, text_encoder_projection_dim=width
        )
        return sizes


def _branches(negative: torch.Tensor | None, positive: torch.Tensor) -> torch.Tensor:
    return positive if negative is None else torch.cat([negative, positive])
