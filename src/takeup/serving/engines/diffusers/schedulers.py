"""Schedulers by name, one new object for every request, set up with its own number of steps."""

from __future__ import annotations

import copy
import inspect
from importlib import import_module
from typing import Any

import torch

from takeup.errors import BadInput, UnknownName
from takeup.serving.model import Request

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
