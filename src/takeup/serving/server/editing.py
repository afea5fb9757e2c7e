"""Edits of a given image. This is the seam: whoever knows how to edit better gives another `Editor`.

An editor prepares a run for the step engine, and may change the decoded image in the end; both off the step loop. If it
must act inside the loop, it brings add-ons. The one here changes a whole image (image-to-image) with Stable Diffusion
1.5 and XL, as diffusers does it, and says of everything else that it is not offered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Protocol

import torch

from takeup.errors import BadInput
from takeup.serving.engines.diffusers.addons import AddOn
from takeup.serving.engines.diffusers.families import Family
from takeup.serving.engines.diffusers.families.sizes import size_of
from takeup.serving.engines.diffusers.runs import Run
from takeup.serving.model import Request
from takeup.serving.server.errors import NotOffered

__all__ = ["EDITOR", "Edit", "Editor", "StockEditor"]

EDITOR = "takeup.serving.server.editing:StockEditor"
"""What servers edit with: a class that is called with the family."""


@dataclass(frozen=True, slots=True)
class Edit:
    """The image to change, as decoded and checked; where to change it (None: everywhere); and how much, up to 1."""

    image: Any
    mask: Any = None
    strength: float = 0.8

    def __post_init__(self) -> None:
        if not 0 < self.strength <= 1:
            raise BadInput(f"the strength is {self.strength:g}; give a share of the steps above 0, at most 1")


class Editor(Protocol):
    """Turns an edit into a run."""

    @property
    def add_ons(self) -> Sequence[AddOn]:
        """What it does in the step loop."""

    def prepare(self, request: Request, edit: Edit) -> Run:
        """As `prepare` of the family, from an image."""

    def finish(self, edit: Edit, image: torch.Tensor) -> torch.Tensor:
        """The decoded image (values from 0 to 1, channels first, one row) as it is answered."""


class StockEditor:
    """Image-to-image: the image with noise as of a later step, denoised from there."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self.add_ons: Sequence[AddOn] = ()

    @torch.no_grad()
    def prepare(self, request: Request, edit: Edit) -> Run:
        if not hasattr(self._family.network, "up_blocks"):
            raise NotOffered("edits are offered for Stable Diffusion 1.5 and XL only; ask for a generation")
        if edit.mask is not None:
            raise NotOffered("edits with a mask are not offered by this server; leave the mask out to change it all")
        run = self._family.prepare(self._sized(request, edit))
        first = _first_step(run, edit.strength)
        if hasattr(run.scheduler, "set_begin_index"):
            run.scheduler.set_begin_index(first)  # before noise is added: some schedulers look here for how much
        run.latents = self._noisy(run, edit, first)
        run.timesteps = run.timesteps[first:]
        return run

    def finish(self, edit: Edit, image: torch.Tensor) -> torch.Tensor:
        return image

    def _sized(self, request: Request, edit: Edit) -> Request:
        """Without a size of its own the answer has that of the image, cut to what the model can do."""
        if request.width_px is not None:
            return request
        width, height = (max(8, side // 8 * 8) for side in edit.image.size)
        return replace(request, width_px=width, height_px=height)

    def _noisy(self, run: Run, edit: Edit, first: int) -> torch.Tensor:
        """In the order of diffusers: the image is drawn from what its encoding says, then the noise."""
        pipeline, vae = self._family.pipeline, self._family.pipeline.vae
        height, width = size_of(pipeline, run.request)
        pixels = pipeline.image_processor.preprocess(edit.image, height=height, width=width)
        generator = torch.Generator("cpu").manual_seed(run.request.seed)
        drawn = vae.encode(pixels.to(vae.device, vae.dtype)).latent_dist.sample(generator)
        clean = (drawn * vae.config.scaling_factor).to(run.latents.dtype)
        draw = import_module("diffusers.utils.torch_utils").randn_tensor
        noise = draw(clean.shape, generator=generator, device=clean.device, dtype=clean.dtype)
        noisy: torch.Tensor = run.scheduler.add_noise(clean, noise, run.timesteps[first].reshape(1))
        return noisy


def _first_step(run: Run, strength: float) -> int:
    """The first of the steps that are made; second-order schedulers make several calls for each."""
    num_steps = run.request.num_steps
    made = min(int(num_steps * strength), num_steps)
    if made < 1:
        raise BadInput(
            f"a strength of {strength:g} leaves none of the {num_steps} steps; give a larger one, or more steps"
        )
    return (num_steps - made) * int(getattr(run.scheduler, "order", 1))
