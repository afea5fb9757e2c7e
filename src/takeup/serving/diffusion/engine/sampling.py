"""What all families share: schedulers by name, image sizes, and classifier-free guidance."""

import copy
import inspect
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import torch

from takeup.errors import BadInput, UnknownName
from takeup.serving.model import Request

# Schedulers by name, one new object for every request, set up with its own number of steps ----------------------------

SCHEDULERS = {
    "ddim": "DDIMScheduler",
    "ddpm": "DDPMScheduler",
    "dpm++": "DPMSolverMultistepScheduler",
    "euler": "EulerDiscreteScheduler",
    "euler_ancestral": "EulerAncestralDiscreteScheduler",
    "heun": "HeunDiscreteScheduler",
    "lcm": "LCMScheduler",
    "lms": "LMSDiscreteScheduler",
    "pndm": "PNDMScheduler",
    "unipc": "UniPCMultistepScheduler",
}


def new_scheduler(pipeline: Any, name: str | None) -> Any:
    """A new scheduler: a copy of the pipeline's own, or that of `name` with the pipeline's noise schedule."""
    if name is None:
        return copy.deepcopy(pipeline.scheduler)
    if name not in SCHEDULERS:
        raise UnknownName("scheduler", name, SCHEDULERS)
    if pipeline.scheduler.__class__.__name__.startswith("FlowMatch"):
        raise BadInput(f"scheduler {name!r} predicts noise, and this pipeline is trained on flows; leave it out")
    return getattr(import_module("diffusers"), SCHEDULERS[name]).from_config(pipeline.scheduler.config)


def set_steps(scheduler: Any, num_steps: int, device: torch.device, **options: Any) -> list[torch.Tensor]:
    """Set the scheduler up. Returns the timesteps of its calls: more than `num_steps` for second-order ones."""
    if "sigmas" in options:
        scheduler.set_timesteps(device=device, **options)
    else:
        scheduler.set_timesteps(num_steps, device=device, **options)
    if hasattr(scheduler, "set_begin_index"):
        scheduler.set_begin_index(0)
    return list(scheduler.timesteps)


def step_options(scheduler: Any, request: Request, generator: torch.Generator) -> dict[str, Any]:
    """The step options that this scheduler supports."""
    known = inspect.signature(scheduler.step).parameters
    offered = {"eta": request.eta, "generator": generator}
    return {name: value for name, value in offered.items() if name in known}


def options_of(request: Request, known: Sequence[str]) -> dict[str, Any]:
    """Further arguments of the pipeline that a request gives; one that has no effect here is refused."""
    for name, _ in request.options:
        if name not in known:
            raise UnknownName("argument of this model", name, known)
    return dict(request.options)


# The size of an image: from the request, else the default of the model ------------------------------------------------


def size_of(pipeline: Any, request: Request) -> tuple[int, int]:
    """Height and width in pixels; must be multiples of `grain_of`."""
    usual = _usual_size(pipeline)
    height, width = request.height_px or usual, request.width_px or usual
    grain = grain_of(pipeline)
    if height < grain or width < grain or height % grain or width % grain:
        raise BadInput(f"the image is {width}x{height} pixels; give sizes that divide by {grain} for this model")
    return height, width


USUAL_SIDE_PX, VAE_FACTOR = 1024, 8


def usual_pixels(pipeline: Any) -> int:
    """The number of pixels that the model was trained for."""
    return _usual_size(pipeline) ** 2


def _usual_size(pipeline: Any) -> int:
    if hasattr(pipeline, "default_sample_size"):
        return int(pipeline.default_sample_size * pipeline.vae_scale_factor)
    size = pipeline.unet.config.sample_size if hasattr(pipeline, "unet") else USUAL_SIDE_PX // VAE_FACTOR
    return int((size if isinstance(size, int) else size[0]) * pipeline.vae_scale_factor)


def grain_of(pipeline: Any) -> int:
    """Required divisor of image sizes, as in the pipelines: 8 with a U-Net, whole patches with a transformer."""
    if hasattr(pipeline, "unet"):
        return 8
    patch = 2 if "Flux" in type(pipeline).__name__ else getattr(pipeline, "patch_size", 2)
    return int(pipeline.vae_scale_factor * patch)


# Steps and guidance of requests that do not say them ------------------------------------------------------------------

OWN_NAMES = ("num_inference_steps", "guidance_scale")
FEW_STEP_NAMES = ("turbo", "lightning", "schnell", "hyper", "lcm")
USUAL = {"StableDiffusion3": (28, 7.0), "StableDiffusionXL": (30, 5.0), "StableDiffusion": (30, 7.5)}


def usual_settings(pipeline: Any, name: str) -> tuple[int, float]:
    """Steps and guidance scale for a model of this name, a folder or a hub id: distilled models take four steps."""
    kind = type(pipeline).__name__
    if kind.startswith("Flux"):
        return (28, 3.5) if pipeline.transformer.config.guidance_embeds else (4, 0.0)
    if any(word in name.lower().rpartition("/")[2] for word in FEW_STEP_NAMES):
        return (9, 0.0) if kind.startswith("ZImage") else (4, 0.0)
    return next((values for start, values in USUAL.items() if kind.startswith(start)), _own_settings(pipeline))


def _own_settings(pipeline: Any) -> tuple[int, float]:
    """The defaults of the pipeline's own call."""
    parameters = inspect.signature(type(pipeline).__call__).parameters
    steps, guidance = (getattr(parameters.get(name), "default", None) for name in OWN_NAMES)
    return steps if isinstance(steps, int) else 50, float(guidance) if isinstance(guidance, int | float) else 1.0


# Guidance by a negative branch, as the pipelines of diffusers compute it ----------------------------------------------


def guided(prediction: torch.Tensor, scale: float, rescale: float = 0.0) -> torch.Tensor:
    """Guidance away from the first row, the negative branch; `rescale` mixes in the positive branch's deviation."""
    if len(prediction) == 1:
        return prediction
    negative, positive = prediction.chunk(2)
    mixed = negative + scale * (positive - negative)
    return _rescaled(mixed, positive, rescale) if rescale > 0 else mixed


def _rescaled(mixed: torch.Tensor, positive: torch.Tensor, share: float) -> torch.Tensor:
    """Lin et al., "Common Diffusion Noise Schedules and Sample Steps are Flawed", section 3.4."""
    dimensions = list(range(1, positive.ndim))
    spread = positive.std(dim=dimensions, keepdim=True) / mixed.std(dim=dimensions, keepdim=True)
    return share * (mixed * spread) + (1 - share) * mixed
