"""Families of pipelines behind one small interface: encode a request, predict for a batch of rows, decode an image.

Per-row timesteps. The networks of all families take a vector of timesteps. In the U-Nets it may be of any number type,
because they convert it to floats first. SD3 takes it unchanged. Flux expects a thousandth of it, rounded to the dtype
of the latents before the division, as its pipeline does; its guidance is an input, a number for every row. Token
positions in Flux have no batch dimension: all rows of a call must share image size and prompt length.
"""

import threading
from importlib import import_module
from typing import Any

import numpy as np
import torch

from takeup.errors import BadInput
from takeup.serving.diffusion.contract import AddOn, BatchRows, DenoisingRun, Family
from takeup.serving.diffusion.engine.sampling import (
    guided,
    new_scheduler,
    options_of,
    set_steps,
    size_of,
    step_options,
)
from takeup.serving.diffusion.engine.stock_pipelines import StockPipeline
from takeup.serving.diffusion.execution.convolutions import DeviceAndDtype, device_and_dtype
from takeup.serving.diffusion.execution.cuda_graph import CAPTURE_LOCK
from takeup.serving.model import Request

# Decoding of latents: large images in tiles, whose memory is bounded --------------------------------------------------

MAX_WHOLE_PIXELS = 2048 * 2048


def decoded(vae: Any, latents: torch.Tensor, max_pixels: int = MAX_WHOLE_PIXELS) -> torch.Tensor:
    """Decode latents; in overlapping tiles, as diffusers does, if the image has more than `max_pixels`."""
    factor = 2 ** (len(vae.config.block_out_channels) - 1)
    is_large = latents.shape[-1] * latents.shape[-2] * factor**2 > max_pixels
    decode = vae.tiled_decode if is_large and hasattr(vae, "tiled_decode") else vae.decode
    image: torch.Tensor = decode(latents, return_dict=False)[0]
    return image


def latent_scale(vae: Any, like: torch.Tensor) -> tuple[Any, Any]:
    """What latents of the VAE are multiplied by and what is added, where those of the network have a size near one."""
    mean, spread = (getattr(vae.config, name, None) for name in ("latents_mean", "latents_std"))
    if mean is None or spread is None:
        return 1.0, getattr(vae.config, "shift_factor", None) or 0.0
    mean, spread = (torch.tensor(values).view(1, -1, 1, 1).to(like) for values in (mean, spread))
    return spread, mean


# What the families here share -----------------------------------------------------------------------------------------


class NativeFamily:
    """A family whose steps are made here. `denoiser` is the name of the network in the pipeline."""

    denoiser: str
    options: tuple[str, ...]
    unused: tuple[str, ...] = ("true_guidance",)
    add_ons: tuple[AddOn, ...] = ()

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self.encoding = threading.RLock()

    @property
    def network(self) -> Any:
        return getattr(self.pipeline, self.denoiser)

    @property
    def where(self) -> DeviceAndDtype:
        """The device and dtype of the network."""
        return device_and_dtype(self.network)

    @torch.no_grad()
    @CAPTURE_LOCK.shared()
    def decode(self, run: DenoisingRun) -> torch.Tensor:
        """Also runs the safety checker and the watermark of the pipeline."""
        vae, latents = self.pipeline.vae, self._unpacked(run)
        spread, shift = latent_scale(vae, latents)
        image = decoded(vae, (latents * spread / vae.config.scaling_factor + shift).to(vae.dtype))
        flagged = None
        if getattr(self.pipeline, "safety_checker", None) is not None:
            image, flagged = self.pipeline.run_safety_checker(image, image.device, self.where[1])
        if getattr(self.pipeline, "watermark", None) is not None:
            image = self.pipeline.watermark.apply_watermark(image)
        shown = [not one for one in flagged or [False]]
        pixels: torch.Tensor = self.pipeline.image_processor.postprocess(image, output_type="pt", do_denormalize=shown)
        return pixels

    def _unpacked(self, run: DenoisingRun) -> torch.Tensor:
        """Latents as an image."""
        return run.latents


# Common base of Stable Diffusion 3 and Flux: a flow-matching transformer with a schedule shift ------------------------

SHIFTED = "diffusers.pipelines.flux.pipeline_flux"


class FlowTransformer(NativeFamily):
    """A pipeline whose denoiser is a transformer. `most_shift`: default of `max_shift`, for the largest image."""

    denoiser = "transformer"
    options: tuple[str, ...] = ("prompt_2",)
    most_shift: float

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
    unused = ("true_guidance", "guidance_rescale")
    options = ("prompt_2", "prompt_3", "negative_prompt_2", "negative_prompt_3", "clip_skip")

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
            negative_prompt=request.negative_prompt,
            do_classifier_free_guidance=with_branches,
            device=self.where[0],
            **{"prompt_2": None, "prompt_3": None, **options_of(request, self.options)},
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
    unused = ("guidance_rescale",)

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
        branches = [(request.prompt, options_of(request, self.options).get("prompt_2"))]
        if (request.true_guidance or 1.0) > 1 and request.negative_prompt is not None:
            branches.insert(0, (request.negative_prompt, None))
        encoded = [self.pipeline.encode_prompt(prompt=text, prompt_2=second) for text, second in branches]
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
        return guided(prediction, run.request.true_guidance or 1.0)

    def _unpacked(self, run: DenoisingRun) -> torch.Tensor:
        height, width = size_of(self.pipeline, run.request)
        latents: torch.Tensor = self.pipeline._unpack_latents(
            run.latents, height, width, self.pipeline.vae_scale_factor
        )
        return latents

    def _timesteps(self, scheduler: Any, num_steps: int, latents: torch.Tensor) -> list[torch.Tensor]:
        options: dict[str, Any] = {"mu": self._shift(scheduler, latents.shape[1])}
        if not scheduler.config.get("use_flow_sigmas"):
            options["sigmas"] = np.linspace(1.0, 1 / num_steps, num_steps)
        return set_steps(scheduler, num_steps, latents.device, **options)


# Stable Diffusion 1.5 and XL: a U-Net that predicts noise, guided by a negative branch --------------------------------


class StableDiffusion(NativeFamily):
    """Stable Diffusion 1.5: one text encoder."""

    denoiser = "unet"
    options: tuple[str, ...] = ("clip_skip",)

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
            request.prompt,
            self.where[0],
            1,
            self._has_branches(request),
            request.negative_prompt,
            **options_of(request, self.options),
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

    options = ("prompt_2", "negative_prompt_2", "clip_skip")

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
            **options_of(request, self.options),
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

    def _sizes(self, request: Request, pooled: torch.Tensor) -> torch.Tensor:
        size = size_of(self.pipeline, request)
        width = pooled.shape[-1]
        sizes: torch.Tensor = self.pipeline._get_add_time_ids(
            size, (0, 0), size, dtype=pooled.dtype, text_encoder_projection_dim=width
        )
        return sizes


def _branches(negative: torch.Tensor | None, positive: torch.Tensor) -> torch.Tensor:
    return positive if negative is None else torch.cat([negative, positive])


# Families by the class name of the pipeline ---------------------------------------------------------------------------

FAMILIES: dict[str, type] = {
    "StableDiffusionPipeline": StableDiffusion,
    "StableDiffusionControlNetPipeline": StableDiffusion,
    "StableDiffusionXLPipeline": StableDiffusionXL,
    "StableDiffusionXLControlNetPipeline": StableDiffusionXL,
    "StableDiffusion3Pipeline": StableDiffusion3,
    "FluxPipeline": Flux,
}


def family_of(pipeline: Any) -> Family:
    """The family of a loaded pipeline; one that has none here is served through its own call."""
    if not callable(pipeline) or not hasattr(pipeline, "components"):
        raise BadInput(f"a {type(pipeline).__name__} is no pipeline of diffusers; load one with from_pretrained")
    family: Family = FAMILIES.get(type(pipeline).__name__, StockPipeline)(pipeline)
    return family
