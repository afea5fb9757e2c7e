"""What stock diffusers makes of a request, and what tests of the diffusers engine have in common."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import pytest
import torch

from takeup.serving.diffusion.engine.sampling import SCHEDULERS
from takeup.serving.model import Request

__all__ = ["ENGINE_MARKS", "SERVER_MARKS", "gap", "stock_latents"]

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch.set_num_threads(1)

ENGINE_MARKS = [
    pytest.mark.engine,
    pytest.mark.xdist_group("diffusers"),  # importing diffusers takes seconds: once is enough
    # diffusers with numpy 2.4, and packages it imports
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),  # PEFT, about a second adapter
]
SERVER_MARKS = ENGINE_MARKS[1:]  # keys and limits need no engine: a painter of the tests stands in for the model


def stock_latents(pipeline: Any, request: Request, **others: Any) -> torch.Tensor:
    """The latents of the pipeline's own call, as a stranger would make it."""
    usual = pipeline.scheduler
    if request.scheduler is not None:
        kind = getattr(import_module("diffusers"), SCHEDULERS[request.scheduler])
        pipeline.scheduler = kind.from_config(usual.config)
    try:
        result = pipeline(
            request.prompt,
            negative_prompt=request.negative_prompt,
            num_inference_steps=request.num_steps,
            guidance_scale=request.guidance,
            height=request.height_px,
            width=request.width_px,
            generator=torch.Generator("cpu").manual_seed(request.seed),
            output_type="latent",
            **_own_options(pipeline, request),
            **others,
        )
    finally:
        pipeline.scheduler = usual
    latents: torch.Tensor = result.images
    return latents


def gap(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """The largest difference, as a share of the largest number: rounding grows with what is rounded."""
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


def _own_options(pipeline: Any, request: Request) -> dict[str, Any]:
    name = type(pipeline).__name__
    if name == "FluxPipeline":
        return {"true_cfg_scale": request.true_guidance or 1.0}
    if name == "StableDiffusion3Pipeline":
        return {}
    options: dict[str, Any] = {"eta": request.eta}
    return options if "ControlNet" in name else {**options, "guidance_rescale": request.guidance_rescale}
