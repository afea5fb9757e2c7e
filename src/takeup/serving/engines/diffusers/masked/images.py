"""Conversion of images and masks: pixels to latents for every family, and compositing of the edit into the original."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from takeup.errors import BadInput
from takeup.serving.engines.diffusers.device.layout import device_and_dtype
from takeup.serving.engines.diffusers.device.quiet import CAPTURE_LOCK
from takeup.serving.engines.diffusers.families import Family
from takeup.serving.engines.templates.keys import digest_of

Pixels = npt.NDArray[np.uint8]


def pixels_of(image: Any) -> Pixels:
    """RGB array (height, width, 3) of a PIL image, or of an array of that shape."""
    array = np.asarray(image.convert("RGB") if hasattr(image, "convert") else image)
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8:
        raise BadInput(f"the image has shape {array.shape} and type {array.dtype}; give rows of pixels of three bytes")
    return array


def mask_pixels(mask: Any, size: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Mask weight of every pixel, from 0 (keep) to 1 (change); the mask must have the size of the image."""
    array = np.asarray(mask.convert("L") if hasattr(mask, "convert") else mask)
    if array.shape != size:
        found = "x".join(str(one) for one in array.shape[::-1])
        raise BadInput(f"the mask is {found} pixels, the image {size[1]}x{size[0]}; give a mask of the same size")
    shares = (array / (255 if array.dtype == np.uint8 else 1)).astype(np.float32)
    if not (np.isfinite(shares).all() and shares.min() >= 0 and shares.max() <= 1):
        raise BadInput("the mask has values outside of 0 to 1; give black for what stays, white for what changes")
    if not shares.any():
        raise BadInput("the mask is empty: nothing would change; paint what should")
    return shares


def image_id(image: Pixels) -> str:
    """Digest of the pixels; equal for images with the same pixels."""
    return digest_of([image.shape, digest_of(image.tobytes())])


def padded(array: Any, grain: int, mode: Literal["edge", "constant"]) -> Any:
    """Pad rows and columns at the end to multiples of `grain`."""
    sides = [(0, -side % grain) for side in array.shape[:2]]
    return np.pad(array, sides + [(0, 0)] * (array.ndim - 2), mode=mode)


@torch.no_grad()
@CAPTURE_LOCK.shared()
def encode(family: Family, image: Pixels, generator: torch.Generator) -> torch.Tensor:
    """VAE latents of an image, batch size 1, before Flux packs them."""
    vae = family.pipeline.vae
    device, dtype = device_and_dtype(family.network)
    scaled = torch.from_numpy(image.copy()).permute(2, 0, 1)[None].to(device, vae.dtype) / 127.5 - 1
    latents = vae.encode(scaled).latent_dist.sample(generator)
    config = vae.config
    mean, spread = (getattr(config, name, None) for name in ("latents_mean", "latents_std"))
    if mean is not None and spread is not None:
        mean, spread = (torch.tensor(values).view(1, -1, 1, 1).to(latents) for values in (mean, spread))
        latents = (latents - mean) / spread
    elif getattr(config, "shift_factor", None):
        latents = latents - config.shift_factor
    scaled_latents: torch.Tensor = (latents * config.scaling_factor).to(dtype)
    return scaled_latents


def drawn_noise(latents: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Gaussian noise of the same shape; drawn on the CPU, so that it is the same for every device."""
    return torch.randn(latents.shape, generator=generator, dtype=latents.dtype).to(latents.device)


def packed(family: Family, latents: torch.Tensor) -> torch.Tensor:
    """Latents in the input layout of the network: Flux packs four into one token."""
    if not hasattr(family.pipeline, "_pack_latents"):
        return latents
    joined: torch.Tensor = family.pipeline._pack_latents(latents, *latents.shape)
    return joined


def composite(original: Pixels, edited: torch.Tensor, shares: npt.NDArray[np.float32]) -> torch.Tensor:
    """The edited image (0 to 1, channels first, batch size 1) inside the mask; outside, bit for bit, the original.

    Padding at the end of the edited image is cut off.
    """
    edited = edited[:, :, : original.shape[0], : original.shape[1]]
    ours = torch.from_numpy(original.copy()).permute(2, 0, 1)[None].to(edited.device)
    share = torch.from_numpy(shares).to(edited.device)
    made = (edited.float().clamp(0, 1) * 255).round()
    mixed = (share * made + (1 - share) * ours).round()
    return torch.where(share > 0, mixed, ours.float()) / 255
