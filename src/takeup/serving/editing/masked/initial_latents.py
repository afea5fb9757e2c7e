"""Initial latents of an edit: images and masks to latents, the first step for a strength, blending, compositing.

A scheduler wrapper preserves the image outside the mask: each step restores the noised original there. Edits of a
whole image are like image-to-image of diffusers: add noise for a later step, and denoise from there.
"""

from copy import copy
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from takeup.errors import BadInput
from takeup.serving.diffusion.contract import DenoisingRun, Family
from takeup.serving.diffusion.engine.families import latent_scale
from takeup.serving.diffusion.engine.sampling import grain_of, size_of
from takeup.serving.diffusion.execution.convolutions import device_and_dtype
from takeup.serving.diffusion.execution.cuda_graph import CAPTURE_LOCK
from takeup.serving.editing.contract import EditRequest
from takeup.serving.editing.templates.template import digest_of
from takeup.serving.model import Request


def skip_steps(run: DenoisingRun, strength: float) -> int:
    """Drop the first steps of the run; return their number. Call before adding noise, which reads the begin index."""
    first = _num_skipped(run, strength)
    if hasattr(run.scheduler, "set_begin_index"):
        run.scheduler.set_begin_index(first)
    run.timesteps = run.timesteps[first:]
    return first


def _num_skipped(run: DenoisingRun, strength: float) -> int:
    num_steps = run.request.num_steps
    if hasattr(run.scheduler, "scale_noise"):  # flow-matching pipelines round the other way
        return int(num_steps - num_steps * strength)
    made = min(int(num_steps * strength), num_steps)
    if made < 1:
        raise BadInput(f"a strength of {strength:g} leaves none of {num_steps} steps; give a larger one, or more steps")
    return (num_steps - made) * int(getattr(run.scheduler, "order", 1))


# Scheduler wrapper that preserves the image outside the mask: each step restores the noised original there ------------


class BlendingScheduler:
    """Wraps the scheduler of one run. `mask` is one where the image is generated, zero where it is preserved.

    The noised originals of all steps are precomputed: schedulers look up values in host tables, which would
    synchronize the device in every step.
    """

    def __init__(
        self,
        scheduler: Any,
        timesteps: list[torch.Tensor],
        clean: torch.Tensor,
        noise: torch.Tensor,
        mask: torch.Tensor,
    ) -> None:
        self._scheduler, self.mask = scheduler, mask
        self._kept = _kept(scheduler, timesteps, clean, noise)
        self._step = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)

    def step(
        self, prediction: torch.Tensor, timestep: Any, latents: torch.Tensor, **options: Any
    ) -> tuple[torch.Tensor]:
        """Like `step` of the scheduler; returns the blended next latents."""
        made: torch.Tensor = self._scheduler.step(prediction, timestep, latents, **{**options, "return_dict": False})[0]
        kept = self._kept[self._step]
        self._step += 1
        return ((1 - self.mask) * kept.to(made.dtype) + self.mask * made,)


def _kept(
    scheduler: Any, timesteps: list[torch.Tensor], clean: torch.Tensor, noise: torch.Tensor
) -> list[torch.Tensor]:
    """The original after each step: with the noise level of the next step, and after the last without noise."""
    shadow, on_host, made = copy(scheduler), (clean.cpu(), noise.cpu()), []
    shadow.timesteps = scheduler.timesteps.cpu()
    for step, timestep in enumerate(timesteps[1:], start=1):
        if getattr(scheduler, "begin_index", None) is not None:
            shadow._step_index = scheduler.begin_index + step  # index of the scheduler at that step
        made.append(noised(shadow, *on_host, timestep.cpu()))
    return list(torch.split(torch.cat([*made, on_host[0]]).to(clean.device), len(clean)))


def noised(scheduler: Any, clean: torch.Tensor, noise: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
    """The image with the noise level of this timestep."""
    times = timestep.reshape(1)
    if hasattr(scheduler, "scale_noise"):
        flowing: torch.Tensor = scheduler.scale_noise(clean, times, noise)
        return flowing
    noisy: torch.Tensor = scheduler.add_noise(clean, noise, times)
    return noisy


# Conversion of images and masks: pixels to latents for every family, and compositing of the edit into the original

Pixels = npt.NDArray[np.uint8]


def eight_bit(image: Image.Image) -> Image.Image:
    """The image with eight bits in each channel: Pillow would cut sixteen-bit grey values, as of depth maps, at 255."""
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image) / 257).round().clip(0, 255).astype(np.uint8))


def pixels_of(image: Any) -> Pixels:
    """RGB array (height, width, 3) of a PIL image, or of an array of that shape."""
    array = np.asarray(eight_bit(image).convert("RGB") if hasattr(image, "convert") else image)
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8:
        raise BadInput(f"the image has shape {array.shape} and type {array.dtype}; give rows of pixels of three bytes")
    return array


def mask_pixels(mask: Any, size: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Mask weight of every pixel, from 0 (keep) to 1 (change); the mask must have the size of the image."""
    array = np.asarray(eight_bit(mask).convert("L") if hasattr(mask, "convert") else mask)
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
    spread, shift = latent_scale(vae, latents)
    scaled_latents: torch.Tensor = ((latents - shift) / spread * vae.config.scaling_factor).to(dtype)
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


def finished(edit: EditRequest, image: torch.Tensor) -> torch.Tensor:
    """The decoded image inside the mask, the bytes of the original outside."""
    if edit.mask is None:
        return image
    original = pixels_of(edit.image)
    return composite(original, image, mask_pixels(edit.mask, original.shape[:2]))


# Edits of a whole image, like image-to-image of diffusers: add noise for a later step, and denoise from there ---------


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
