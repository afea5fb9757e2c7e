"""Full-size networks with random weights, or none (device `meta`), to count FLOP and to benchmark."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from takeup.serving.editing.masked.hooks import MaskingHooks
from takeup.serving.editing.masked.tokens import Grid, TokenIndices, grids_of, working_copy

SPREAD = 0.02
ALIGNED = 4
"""Tokens of the finest grid that are one of the coarsest, along a side."""


@dataclass(frozen=True, slots=True)
class FullSize:
    """A network for images of 1024x1024 pixels: constructor, inputs, rows per image, finest grid, number of grids."""

    build: Callable[[], Any]
    inputs: Callable[[int, dict[str, Any]], dict[str, Any]]
    num_rows: int
    grid: tuple[int, int]
    num_levels: int

    def network(self, device: str, dtype: torch.dtype = torch.bfloat16) -> Any:
        """Build the network with random weights, directly on the device."""
        with torch.device("meta"):
            network = self.build().to(dtype).eval().requires_grad_(False)
        if device == "meta":
            return network
        network = network.to_empty(device=device)
        for weights in [*network.parameters(), *network.buffers()]:
            weights.data.normal_(std=SPREAD)
        return network


def _sdxl() -> Any:
    return import_module("diffusers").UNet2DConditionModel(
        sample_size=128,
        block_out_channels=(320, 640, 1280),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=(5, 10, 20),
        transformer_layers_per_block=(1, 2, 10),
        cross_attention_dim=2048,
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=256,
        projection_class_embeddings_input_dim=2816,
    )


def _sdxl_inputs(num_rows: int, where: dict[str, Any]) -> dict[str, Any]:
    added = {"text_embeds": torch.randn(num_rows, 1280, **where), "time_ids": torch.ones(num_rows, 6, **where)}
    return {
        "sample": torch.randn(num_rows, 4, 128, 128, **where),
        "timestep": torch.full((num_rows,), 500.0, device=where["device"]),
        "encoder_hidden_states": torch.randn(num_rows, 77, 2048, **where),
        "added_cond_kwargs": added,
    }


def _flux() -> Any:
    return import_module("diffusers").FluxTransformer2DModel(guidance_embeds=True)


def _flux_inputs(num_rows: int, where: dict[str, Any]) -> dict[str, Any]:
    rows, columns = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
    places = torch.stack([torch.zeros_like(rows), rows, columns], dim=-1).reshape(-1, 3)
    return {
        "hidden_states": torch.randn(num_rows, 4096, 64, **where),
        "encoder_hidden_states": torch.randn(num_rows, 512, 4096, **where),
        "pooled_projections": torch.randn(num_rows, 768, **where),
        "timestep": torch.full((num_rows,), 0.5, **where),
        "guidance": torch.full((num_rows,), 3.5, device=where["device"]),
        "img_ids": places.to(**where),
        "txt_ids": torch.zeros(512, 3, **where),
    }


FULL_SIZE = {
    "sdxl": FullSize(_sdxl, _sdxl_inputs, num_rows=2, grid=(128, 128), num_levels=3),
    "flux": FullSize(_flux, _flux_inputs, num_rows=1, grid=(64, 64), num_levels=1),
}


def masked_places(
    size: FullSize, share: float, num_rows: int, device: str, multiple: int = 1
) -> dict[int, TokenIndices]:
    """The first tokens of every grid, `share` of all, rounded up to `multiple`."""
    places = {}
    for height, width in grids_of(size.grid, size.num_levels):
        count = -(-round(share * height * width) // multiple) * multiple
        first = torch.arange(min(count, height * width), device=device).expand(num_rows, -1)
        places[height * width] = TokenIndices.of(first, height * width)
    return places


def box_mask(grid: Grid, share: float) -> torch.Tensor:
    """Mask of `share` of the grid: a roughly square box, filled row by row, a quarter from the left and the top."""
    height, width = grid
    count = round(share * height * width)
    narrowest = max(count**0.5, count / height)
    wide = min(width, ALIGNED * math.ceil(narrowest / ALIGNED))
    high = math.ceil(count / wide)
    top, left = (min(side // 4, (side - size) // ALIGNED * ALIGNED) for side, size in ((height, high), (width, wide)))
    box = (torch.arange(high * wide) < count).view(high, wide)
    mask = torch.zeros(grid, dtype=torch.bool)
    mask[top : top + high, left : left + wide] = box
    return mask


@torch.no_grad()
def count_flop(name: str, share: float | None = None, *, convolutions: bool = False) -> float:
    """FLOP of one step of one image, for a mask that covers `share`, or for all tokens. Nothing is computed.

    With `convolutions` these are masked too.
    """
    size = FULL_SIZE[name]
    network = size.network("meta")
    inputs = size.inputs(size.num_rows, {"device": "meta", "dtype": torch.bfloat16})
    hooks = MaskingHooks(network, convolutions=convolutions)
    with torch.device("meta"):
        if share is not None:
            hooks.call.mode = "record"
            network(**inputs)
            hooks.call.mode = "masked"
            hooks.call.places = _counted_places(size, share, "cpu" if convolutions else "meta")
            hooks.call.kept = working_copy(hooks.call.recorded, hooks.fronted, hooks.call.num_front)
        with FlopCounterMode(display=False) as counter:
            network(**inputs)
    return float(counter.get_total_flops())


def _counted_places(size: FullSize, share: float, device: str) -> dict[int, TokenIndices]:
    """Positions with `flat` on `meta`: gather tables need real indices, token copies do not."""
    places = masked_places(size, share, size.num_rows, device)
    return {number: replace(one, flat=one.flat.to("meta")) for number, one in places.items()}
