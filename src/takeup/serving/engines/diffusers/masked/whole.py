"""Edits of a whole image, like image-to-image of diffusers: add noise for a later step, and denoise from there."""

from __future__ import annotations

from dataclasses import replace

import torch
from PIL import Image

from takeup.serving.engines.diffusers.families import Family
from takeup.serving.engines.diffusers.families.sizes import grain_of, size_of
from takeup.serving.engines.diffusers.masked.asked import EditRequest
from takeup.serving.engines.diffusers.masked.blend import noised
from takeup.serving.engines.diffusers.masked.images import drawn_noise, encode, packed, pixels_of
from takeup.serving.engines.diffusers.masked.starts import skip_steps
from takeup.serving.engines.diffusers.runs import DenoisingRun
from takeup.serving.model import Request


@torch.no_grad()
def prepare_whole(family: Family, request: Request, edit: EditRequest) -> DenoisingRun:
    """Prepare the run of a whole-image edit; the image is scaled to the requested size."""
    picture = Image.fromarray(pixels_of(edit.image))
    run = family.prepare(_sized(request, picture.size, grain_of(family.pipeline)))
    height, width = size_of(family.pipeline, run.request)
    generator = torch.Generator("cpu").manual_seed(request.seed)
    scaled = picture.resize((width, height), Image.Resampling.LANCZOS)
    clean = encode(family, pixels_of(scaled), generator)
    noise = drawn_noise(clean, generator)  # same random order as diffusers: first the encoding, then this
    skip_steps(run, edit.strength)
    run.latents = noised(run.scheduler, packed(family, clean), packed(family, noise), run.timesteps[0])
    return run


def _sized(request: Request, size: tuple[int, int], grain: int) -> Request:
    """If the request has no size, use that of the image, rounded down to multiples of `grain`."""
    if request.width_px is not None:
        return request
    width, height = (max(grain, side // grain * grain) for side in size)
    return replace(request, width_px=width, height_px=height)
