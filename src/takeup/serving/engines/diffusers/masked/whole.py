"""Edits of a whole image, as diffusers makes image-to-image: the image with noise as of a later step, from there on."""

from __future__ import annotations

from dataclasses import replace

import torch
from PIL import Image

from takeup.serving.engines.diffusers.families import Family
from takeup.serving.engines.diffusers.families.sizes import grain_of, size_of
from takeup.serving.engines.diffusers.masked.asked import Edit
from takeup.serving.engines.diffusers.masked.blend import noised
from takeup.serving.engines.diffusers.masked.images import drawn_noise, encode, packed, pixels_of
from takeup.serving.engines.diffusers.masked.starts import skip_steps
from takeup.serving.engines.diffusers.runs import Run
from takeup.serving.model import Request

__all__ = ["prepare_whole"]


@torch.no_grad()
def prepare_whole(family: Family, request: Request, edit: Edit) -> Run:
    """The run of such an edit; the image is scaled to the size that is asked for."""
    picture = Image.fromarray(pixels_of(edit.image))
    run = family.prepare(_sized(request, picture.size, grain_of(family.pipeline)))
    height, width = size_of(family.pipeline, run.request)
    generator = torch.Generator("cpu").manual_seed(request.seed)
    scaled = picture.resize((width, height), Image.Resampling.LANCZOS)
    clean = encode(family, pixels_of(scaled), generator)
    noise = drawn_noise(clean, generator)  # in the order of diffusers: first what the encoding takes, then this
    skip_steps(run, edit.strength)
    run.latents = noised(run.scheduler, packed(family, clean), packed(family, noise), run.timesteps[0])
    return run


def _sized(request: Request, size: tuple[int, int], grain: int) -> Request:
    """Without a size of its own the answer has that of the image, cut to what the model can do."""
    if request.width_px is not None:
        return request
    width, height = (max(grain, side // grain * grain) for side in size)
    return replace(request, width_px=width, height_px=height)
