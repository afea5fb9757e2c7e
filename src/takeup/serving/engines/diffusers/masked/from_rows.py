"""Compute keys and values of a template from cached block inputs (rows): half as many bytes, and two matmuls.

The input of a block need not be loaded if the block before it is computed whole, for every token and with the text of
the request. The masked call itself is the same either way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.nn.functional import layer_norm, linear, rms_norm, silu

from takeup.serving.engines.diffusers.masked.modulations import embedded
from takeup.serving.engines.diffusers.masked.pages import ROWS, Page
from takeup.serving.engines.diffusers.masked.rotary import RotaryTable, rotate
from takeup.serving.engines.diffusers.masked.row_blocks import TransformerBlock, blocks_of
from takeup.serving.engines.diffusers.runs import DenoisingRun

FLUX_EPS = 1e-6


class BlockConditioning(NamedTuple):
    """Time and prompt embedding for norms, and rotary embeddings of image positions; None where the network has none.

    For blocks that are computed whole: the text, and rotary embeddings of text and image positions.
    """

    embedding: torch.Tensor | None
    turns: RotaryTable | None
    text: torch.Tensor | None = None
    all_turns: RotaryTable | None = None


BlockOutput = tuple[torch.Tensor, torch.Tensor | None]
"""What a block leaves to the next: tokens of the image, and those of the text."""


class KvFromRows:
    """Computes keys and values with a network, whose weights must be those of the template at the time of the call."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.blocks = {block.name: block for block in blocks_of(network)}
        self.seconds: dict[Hashable, float] = {}
        """That blocks of a kind take, as far as was measured."""

        self.plain: Callable[[], AbstractContextManager[None]] = nullcontext
        """Inside, blocks compute as diffusers does."""

    def behind(self, whole: frozenset[str]) -> frozenset[str]:
        """Blocks whose input is the output of one of these."""
        pairs = pairwise(self.blocks.values())
        return frozenset(after.name for before, after in pairs if after.follows and before.name in whole)

    @torch.no_grad()
    def conditioning(self, run: DenoisingRun, step: int, has_whole: bool = False) -> BlockConditioning:
        """Conditioning inputs of the blocks for a step; with text if `has_whole` blocks."""
        told = BlockConditioning(self._embedding(run, step), self._turns(run, "img_ids"))
        if not has_whole:
            return told
        return told._replace(text=self._text(run), all_turns=self._turns(run, "txt_ids", "img_ids"))

    @torch.no_grad()
    def made(self, page: Page, told: BlockConditioning, whole: frozenset[str] = frozenset()) -> Page:
        """Keys and values of blocks whose input is in the page, and of blocks that follow one computed `whole`."""
        found: dict[str, torch.Tensor] = {}
        for name, rows in self._rows(page, told, whole).items():
            block = self.blocks[name]
            found.update(zip(block.parts, _projected(block, rows, told.embedding, told.turns), strict=True))
        return found

    def computed(
        self, block: TransformerBlock, rows: torch.Tensor, told: BlockConditioning, left: BlockOutput | None = None
    ) -> BlockOutput:
        """Run a block for all tokens. If blocks change the text, `left`, the output of the previous one, is needed."""
        assert left is not None or not (block.has_text and block.follows), f"block {block.name} has no text"
        text = told.text if left is None else left[1]
        if told.embedding is None:
            return block.module(rows, encoder_hidden_states=text), text
        turns = {} if told.all_turns is None else {"image_rotary_emb": told.all_turns}
        text, rows = block.module(rows, encoder_hidden_states=text, temb=told.embedding, **turns)
        return rows, text

    def _rows(self, page: Page, told: BlockConditioning, whole: frozenset[str]) -> dict[str, torch.Tensor]:
        """Inputs by block: from the page, or the output of the previous block."""
        rows = {name: page[name + ROWS] for name in self.blocks if name + ROWS in page}
        if not whole:
            return rows
        left: BlockOutput | None = None
        with self.plain():
            for name, block in self.blocks.items():
                left = left if block.follows else None
                if left is not None:
                    rows[name] = left[0]
                left = self.computed(block, rows[name], told, left) if name in whole else None
        return rows

    def _text(self, run: DenoisingRun) -> torch.Tensor:
        text: torch.Tensor = run.inputs["encoder_hidden_states"]
        embed = getattr(self._network, "context_embedder", None)
        return text if embed is None else embed(text)

    def _embedding(self, run: DenoisingRun, step: int) -> torch.Tensor | None:
        if not hasattr(self._network, "time_text_embed"):
            return None
        time = run.timesteps[step].to(run.latents.device)[None]
        if "img_ids" in run.shared:
            time = time.float().to(run.latents.dtype) / 1000
            return embedded(self._network, time, {"hidden_states": run.latents, "timestep": time, **run.inputs})
        pooled = run.inputs["pooled_projections"]
        told: torch.Tensor = self._network.time_text_embed(time.expand(len(pooled)), pooled)
        return told

    def _turns(self, run: DenoisingRun, *names: str) -> RotaryTable | None:
        if not set(names) <= set(run.shared):
            return None
        cosine, sine = self._network.pos_embed(torch.cat([run.shared[name] for name in names]))
        return cosine, sine


def _projected(
    block: TransformerBlock, tokens: torch.Tensor, embedding: torch.Tensor | None, turns: RotaryTable | None
) -> tuple[torch.Tensor, torch.Tensor]:
    attention = block.attention
    layers = attention.to_k.weight, attention.to_k.bias, attention.to_v.weight, attention.to_v.bias
    if embedding is None or turns is None:
        normed = block.norm(tokens) if embedding is None else block.norm(tokens, emb=embedding)[0]
        return linear(normed, *layers[:2]), linear(normed, *layers[2:])
    told, width = block.norm.linear, 2 * tokens.shape[-1]
    moves = linear(silu(embedding), told.weight[:width], told.bias[:width])
    table = turns[0][None], turns[1][None]
    make = _few_kernels() if tokens.is_cuda else _turned_projection
    key, value = make(tokens, moves, layers, attention.norm_k.weight, attention.norm_k.eps, table)
    return key, value


def _turned_projection(
    tokens: torch.Tensor,
    moves: torch.Tensor,
    layers: tuple[torch.Tensor, ...],
    weight: torch.Tensor,
    eps: float,
    table: RotaryTable,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of Flux: modulated layer norm (AdaLN), projections, RMS norm and rotary embedding of keys."""
    shift, scale = (one[:, None] for one in moves.chunk(2, dim=1))
    normed = layer_norm(tokens, tokens.shape[-1:], eps=FLUX_EPS) * (1 + scale) + shift
    heads = *tokens.shape[:2], -1, len(weight)
    key, value = linear(normed, *layers[:2]).view(heads), linear(normed, *layers[2:]).view(heads)
    return rotate(rms_norm(key, weight.shape, weight, eps), table), value


@lru_cache(maxsize=1)
def _few_kernels() -> Any:
    """Compiled projection, which fuses a dozen kernels that each read and write all tokens."""
    return torch.compile(_turned_projection, dynamic=True)
