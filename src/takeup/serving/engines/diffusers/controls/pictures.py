"""Pictures as ControlNets want them: what diffusers makes of them, but turned into numbers on the device."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import torch
from PIL import Image

from takeup.serving.engines.diffusers.device.layout import where_of

__all__ = ["as_control"]


def as_control(picture: Any, size: tuple[int, int], factor: int, net: Any) -> torch.Tensor:
    """A picture of this height and width, one row, values from 0 to 1. `factor`: pixels of one latent along a side.

    Turned into floats by the host, a large picture takes as long as half a step, and the loop waits for it.
    """
    make = import_module("diffusers.image_processor").VaeImageProcessor
    processor = make(vae_scale_factor=factor, do_convert_rgb=True, do_normalize=False)
    device, dtype = where_of(net)
    if isinstance(picture, Image.Image):
        height, width = processor.get_default_height_width(picture, *size)
        fitting = processor.convert_to_rgb(processor.resize(picture, height, width))
        pixels = torch.from_numpy(np.array(fitting)).to(device)
        image: torch.Tensor = (pixels[None].float() / 255).permute(0, 3, 1, 2)
    else:
        image = processor.preprocess(picture, height=size[0], width=size[1])
    # The layout too: convolutions round differently for channels that come last, as they do in pictures.
    return image.to(device, dtype).contiguous()
