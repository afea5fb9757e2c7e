"""Control images preprocessed as in diffusers, except that they are converted to floats on the device."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import torch
from PIL import Image

from takeup.serving.engines.diffusers.device.layout import device_and_dtype


def control_image(picture: Any, size: tuple[int, int], factor: int, net: Any) -> torch.Tensor:
    """An image of this height and width, one row, values from 0 to 1. `factor`: pixels of one latent along a side.

    Converting a large image to floats on the host takes as long as half a step and would block the loop.
    """
    make = import_module("diffusers.image_processor").VaeImageProcessor
    processor = make(vae_scale_factor=factor, do_convert_rgb=True, do_normalize=False)
    device, dtype = device_and_dtype(net)
    if isinstance(picture, Image.Image):
        height, width = processor.get_default_height_width(picture, *size)
        fitting = processor.convert_to_rgb(processor.resize(picture, height, width))
        pixels = torch.from_numpy(np.array(fitting)).to(device)
        image: torch.Tensor = (pixels[None].float() / 255).permute(0, 3, 1, 2)
    else:
        image = processor.preprocess(picture, height=size[0], width=size[1])
    # Contiguous too: convolutions round differently for channels-last inputs, the layout of decoded images.
    return image.to(device, dtype).contiguous()
