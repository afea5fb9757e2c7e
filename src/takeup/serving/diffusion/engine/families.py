"""Families of pipelines behind one small interface: encode a request, predict for a batch of rows, decode an image.

Per-row timesteps. The networks of all families take a vector of timesteps. In the U-Nets it may be of any number type,
because they convert it to floats first. SD3 takes it unchanged. Flux expects a thousandth of it, rounded to the dtype
of the latents before the division, as its pipeline does; its guidance is an input, a number for every row. Token
positions in Flux have no batch dimension: all rows of a call must share image size and prompt length.
"""

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from takeup.errors import BadInput
from takeup.serving.diffusion.contract import BatchRows, DenoisingRun
from takeup.serving.diffusion.engine.flow_transformers import Flux, StableDiffusion3
from takeup.serving.diffusion.engine.unets import StableDiffusion, StableDiffusionXL
from takeup.serving.model import Request


class Family(Protocol):
    """The interface to one kind of pipeline."""

    pipeline: Any
    encoding: AbstractContextManager[Any]
    """Held while text encoders are used, for LoRAs may change them for a moment."""

    @property
    def network(self) -> Any:
        """The denoiser."""

    def prepare(self, request: Request) -> DenoisingRun:
        """Encode the prompts, sample the noise, set up a separate scheduler."""

    def encode(self, request: Request) -> dict[str, torch.Tensor]:
        """The outputs of the text encoders, a row for every guidance branch."""

    def predict(self, rows: BatchRows) -> torch.Tensor:
        """One call of the network."""

    def guide(self, run: DenoisingRun, prediction: torch.Tensor) -> torch.Tensor:
        """Combine the predictions of the branches into one."""

    def decode(self, run: DenoisingRun) -> torch.Tensor:
        """The image of finished latents, values from 0 to 1, channels first."""


FAMILIES: dict[str, type] = {
    "StableDiffusionPipeline": StableDiffusion,
    "StableDiffusionControlNetPipeline": StableDiffusion,
    "StableDiffusionXLPipeline": StableDiffusionXL,
    "StableDiffusionXLControlNetPipeline": StableDiffusionXL,
    "StableDiffusion3Pipeline": StableDiffusion3,
    "FluxPipeline": Flux,
}


def family_of(pipeline: Any) -> Family:
    """The family of a loaded pipeline."""
    name = type(pipeline).__name__
    if name not in FAMILIES:
        raise BadInput(f"a {name} cannot be served step by step; load the model as one of {', '.join(FAMILIES)}")
    family: Family = FAMILIES[name](pipeline)
    return family
