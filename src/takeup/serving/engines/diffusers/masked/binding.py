"""Select the CUDA-graph implementation of masked calls for a network, if there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from takeup.serving.engines.diffusers.device.compute import PreparedNetwork
from takeup.serving.engines.diffusers.masked.bound import MaskedBatch
from takeup.serving.engines.diffusers.masked.bound_flux import FluxGraphCall, can_bind_tokens
from takeup.serving.engines.diffusers.masked.bound_unet import UnetGraphCall, can_bind_columns
from takeup.serving.engines.diffusers.masked.call import TokenIndices
from takeup.serving.engines.diffusers.masked.kept_columns import ColumnTables
from takeup.serving.engines.diffusers.masked.kept_tokens import TokenTables
from takeup.serving.engines.diffusers.masked.tables import IndexTables
from takeup.serving.engines.diffusers.masked.tokens import Grid
from takeup.serving.engines.diffusers.runs import GraphBuffers


def can_bind(prepared: PreparedNetwork) -> bool:
    """Whether masked calls of this network can be captured as CUDA graphs."""
    return can_bind_columns(prepared) or can_bind_tokens(prepared)


def tables_for(
    network: Any, places: Mapping[int, TokenIndices], size: Grid, shared: Mapping[str, torch.Tensor], multiple: int
) -> IndexTables:
    """Token positions of a call; `shared` are the inputs that all its rows share."""
    if "img_ids" in shared:
        return TokenTables(network, places, shared)
    return ColumnTables(places, size, multiple)


def bind(prepared: PreparedNetwork, masked: MaskedBatch) -> GraphBuffers:
    """Buffers and forwards for masked calls of this kind."""
    for pages in masked.readers:
        pages.from_rows.plain = prepared.plain
    return (
        FluxGraphCall(prepared, masked) if isinstance(masked.tables, TokenTables) else UnetGraphCall(prepared, masked)
    )
