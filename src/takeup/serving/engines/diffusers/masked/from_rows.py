"""Keys and values of a template from the tokens that came into each block: half as many bytes, and two products.

Rows of a block need not come at all if the block before is computed whole, for every token and with the text of the
request. Calls themselves see no difference.
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
from takeup.serving.engines.diffusers.masked.rotary import Table, turned
from takeup.serving.engines.diffusers.masked.row_blocks import Block, blocks_of
from takeup.serving.engines.diffusers.runs import Run

__all__ = ["FromRows", "Told"]

FLUX_EPS = 1e-6


class Told(NamedTuple):
    """What norms are told of time and prompt, and the turns of positions in the image; where there are such things.

    For blocks that are computed whole: the text, and turns with those of its positions in front.
    """

    embedding: torch.Tensor | None
    turns: Table | None
    text: torch.Tensor | None = None
    all_turns: Table | None = None


Left = tuple[torch.Tensor, torch.Tensor | None]
"""What a block leaves to the next: tokens of the image, and those of the text."""


class FromRows:
    """For a network. Its weights must be those of the template when it is asked."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.blocks = {block.name: block for block in blocks_of(network)}
        self.seconds: dict[Hashable, float] = {}
        """That blocks of a kind take, as far as was measured."""

        self.plain: Callable[[], AbstractContextManager[None]] = nullcontext
        """Inside, blocks compute as diffusers does."""

    def behind(self, whole: frozenset[str]) -> frozenset[str]:
        """Blocks to which one of these leaves rows."""
        pairs = pairwise(self.blocks.values())
        return frozenset(after.name for before, after in pairs if after.follows and before.name in whole)

    @torch.no_grad()
    def told(self, run: Run, step: int, has_whole: bool = False) -> Told:
        """What blocks need to know of a step; whether any of them are computed whole."""
        told = Told(self._embedding(run, step), self._turns(run, "img_ids"))
        if not has_whole:
            return told
        return told._replace(text=self._text(run), all_turns=self._turns(run, "txt_ids", "img_ids"))

    @torch.no_grad()
    def made(self, page: Page, told: Told, whole: frozenset[str] = frozenset()) -> Page:
        """Keys and values of blocks of which a page has rows, and of those behind blocks that are computed `whole`."""
        found: dict[str, torch.Tensor] = {}
        for name, rows in self._rows(page, told, whole).items():
            block = self.blocks[name]
            found.update(zip(block.parts, _projected(block, rows, told.embedding, told.turns), strict=True))
        return found

    def computed(self, block: Block, rows: torch.Tensor, told: Told, left: Left | None = None) -> Left:
        """A block for every token. Where it changes the text it needs what the block before `left`."""
        assert left is not None or not (block.has_text and block.follows), f"block {block.name} has no text"
        text = told.text if left is None else left[1]
        if told.embedding is None:
            return block.module(rows, encoder_hidden_states=text), text
        turns = {} if told.all_turns is None else {"image_rotary_emb": told.all_turns}
        text, rows = block.module(rows, encoder_hidden_states=text, temb=told.embedding, **turns)
        return rows, text

    def _rows(self, page: Page, told: Told, whole: frozenset[str]) -> dict[str, torch.Tensor]:
        """By block: those of the page, and those that other blocks leave."""
        rows = {name: page[name + ROWS] for name in self.blocks if name + ROWS in page}
        if not whole:
            return rows
        left: Left | None = None
        with self.plain():
            for name, block in self.blocks.items():
                left = left if block.follows else None
                if left is not None:
                    rows[name] = left[0]
                left = self.computed(block, rows[name], told, left) if name in whole else None
        return rows

    def _text(self, run: Run) -> torch.Tensor:
        text: torch.Tensor = run.inputs["encoder_hidden_states"]
        embed = getattr(self._network, "context_embedder", None)
        return text if embed is None else embed(text)

    def _embedding(self, run: Run, step: int) -> torch.Tensor | None:
        if not hasattr(self._network, "time_text_embed"):
            return None
        time = run.timesteps[step].to(run.latents.device)[None]
        if "img_ids" in run.shared:
            time = time.float().to(run.latents.dtype) / 1000
            return embedded(self._network, time, {"hidden_states": run.latents, "timestep": time, **run.inputs})
        pooled = run.inputs["pooled_projections"]
        told: torch.Tensor = self._network.time_text_embed(time.expand(len(pooled)), pooled)
        return told

    def _turns(self, run: Run, *names: str) -> Table | None:
        if not set(names) <= set(run.shared):
            return None
        cosine, sine = self._network.pos_embed(torch.cat([run.shared[name] for name in names]))
        return cosine, sine


def _projected(
    block: Block, tokens: torch.Tensor, embedding: torch.Tensor | None, turns: Table | None
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
    table: Table,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of Flux, whose norms are moved by time and prompt, and whose keys are normed and turned by their positions."""
    shift, scale = (one[:, None] for one in moves.chunk(2, dim=1))
    normed = layer_norm(tokens, tokens.shape[-1:], eps=FLUX_EPS) * (1 + scale) + shift
    heads = *tokens.shape[:2], -1, len(weight)
    key, value = linear(normed, *layers[:2]).view(heads), linear(normed, *layers[2:]).view(heads)
    return turned(rms_norm(key, weight.shape, weight, eps), table), value


@lru_cache(maxsize=1)
def _few_kernels() -> Any:
    """Instead of a dozen that read and write all tokens."""
    return torch.compile(_turned_projection, dynamic=True)
