"""The size of an image: from the request, else the default of the model."""

from __future__ import annotations

from typing import Any

from takeup.errors import BadInput
from takeup.serving.model import Request


def size_of(pipeline: Any, request: Request) -> tuple[int, int]:
    """Height and width in pixels; must be multiples of `grain_of`."""
    usual = _usual_size(pipeline)
    height, width = request.height_px or usual, request.width_px or usual
    grain = grain_of(pipeline)
    if height < grain or width < grain or height % grain or width % grain:
        raise BadInput(f"the image is {width}x{height} pixels; give sizes that divide by {grain} for this model")
    return height, width


def _usual_size(pipeline: Any) -> int:
    if hasattr(pipeline, "default_sample_size"):
        return int(pipeline.default_sample_size * pipeline.vae_scale_factor)
    size = pipeline.unet.config.sample_size
    return int((size if isinstance(size, int) else size[0]) * pipeline.vae_scale_factor)


def grain_of(pipeline: Any) -> int:
    """Required divisor of image sizes, as in the pipelines: 8 with a U-Net, whole patches with a transformer."""
    if hasattr(pipeline, "unet"):
        return 8
    patch = 2 if type(pipeline).__name__ == "FluxPipeline" else pipeline.patch_size
    return int(pipeline.vae_scale_factor * patch)
