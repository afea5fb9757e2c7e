"""Transformer blocks whose keys and values can be computed from the block input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class TransformerBlock:
    """A transformer block, its input norm, and its self-attention over image tokens.

    `follows`: its input is the output of the previous block. `has_text`: it also has text tokens, which blocks change.
    """

    name: str
    module: Any
    norm: Any
    attention: Any
    follows: bool = False
    has_text: bool = False

    @property
    def parts(self) -> tuple[str, str]:
        """Names of its keys and values."""
        return f"{self.name}.k", f"{self.name}.v"


def blocks_of(network: Any) -> Iterator[TransformerBlock]:
    """All such blocks of a network, in order of execution."""
    kind = type(network).__name__
    if kind == "UNet2DConditionModel":
        return _of_unet(network)
    return _of_sd3(network) if kind == "SD3Transformer2DModel" else _of_flux(network)


def _of_unet(network: Any) -> Iterator[TransformerBlock]:
    for path, module in network.named_modules():
        if type(module).__name__ == "Transformer2DModel":
            can = [type(one.norm1) is torch.nn.LayerNorm and one.pos_embed is None for one in module.transformer_blocks]
            for number, block in enumerate(module.transformer_blocks):
                if can[number]:
                    follows = number > 0 and can[number - 1]
                    yield TransformerBlock(f"{path}.{number}", block, block.norm1, block.attn1, follows)


def _of_sd3(network: Any) -> Iterator[TransformerBlock]:
    can = [getattr(one, "attn2", None) is None for one in network.transformer_blocks]
    for number, block in enumerate(network.transformer_blocks):
        if can[number]:
            follows = number > 0 and can[number - 1]
            yield TransformerBlock(f"{number}", block, block.norm1, block.attn, follows, has_text=True)


def _of_flux(network: Any) -> Iterator[TransformerBlock]:
    first = len(network.transformer_blocks)
    for number, block in enumerate((*network.transformer_blocks, *network.single_transformer_blocks)):
        norm = block.norm1 if number < first else block.norm
        yield TransformerBlock(f"{number}", block, norm, block.attn, number > 0, has_text=True)
