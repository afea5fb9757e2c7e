"""Keys and values of a template from the tokens that came into each block: half as many bytes, and two products.

What brings pages decides block by block which of both it takes (`Wanted`); the calls themselves see no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch.nn.functional import layer_norm, linear, rms_norm, silu

from takeup.serving.engines.diffusers.masked.modulations import embedded
from takeup.serving.engines.diffusers.masked.pages import OUT, ROWS, Page
from takeup.serving.engines.diffusers.masked.rotary import Table, turned
from takeup.serving.engines.diffusers.runs import Run
from takeup.serving.engines.templates.templates import ALL, Reader, Wanted

__all__ = ["Block", "Brought", "FromRows", "Pages", "blocks_of", "in_rows", "wanted_of"]

FLUX_EPS = 1e-6
Told = tuple[torch.Tensor | None, Table | None]
"""What norms are told of time and prompt, and the turns of all positions; where there are such things."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a transformer, the norm of what comes into it, and its attention among tokens of the image."""

    name: str
    module: Any
    norm: Any
    attention: Any

    @property
    def parts(self) -> tuple[str, str]:
        """Names of its keys and values."""
        return f"{self.name}.k", f"{self.name}.v"


class FromRows:
    """For a network. Its weights must be those of the template when it is asked."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.blocks = {block.name: block for block in blocks_of(network)}
        self.seconds: dict[Hashable, float] = {}
        """That blocks of a kind take, as far as was measured."""

    @torch.no_grad()
    def told(self, run: Run, step: int) -> Told:
        """What blocks need to know of a step."""
        return self._embedding(run, step), self._table(run)

    @torch.no_grad()
    def made(self, page: Page, told: Told) -> Page:
        """Keys and values of the blocks of which a page has rows."""
        found: dict[str, torch.Tensor] = {}
        for name, rows in page.items():
            if name.endswith(ROWS):
                block = self.blocks[name.removesuffix(ROWS)]
                found.update(zip(block.parts, _projected(block, rows, *told), strict=True))
        return found

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

    def _table(self, run: Run) -> Table | None:
        if "img_ids" not in run.shared:
            return None
        cosine, sine = self._network.pos_embed(run.shared["img_ids"])
        return cosine[None], sine[None]


@dataclass(frozen=True, slots=True)
class Brought:
    """A page as it comes, perhaps with rows, and how to make keys and values of these."""

    page: Page
    made: Callable[[], Page]

    def whole(self) -> Page:
        """Keys and values of all blocks, and the rest."""
        return {name: one for name, one in self.page.items() if not name.endswith(ROWS)} | dict(self.made())


@dataclass(frozen=True, slots=True)
class Pages:
    """What a template says to the steps of a run."""

    reader: Reader
    run: Run
    from_rows: FromRows
    wanted: Wanted = ALL

    def wanted_from(self, from_rows: frozenset[str], far: tuple[str, ...] = ()) -> Wanted:
        """These blocks as rows, unless the template is near; as `far` of `Wanted`."""
        names = self.reader.template.pages[0]
        return wanted_of(names, frozenset() if self.reader.is_near else from_rows, far)

    def has(self, step: int) -> bool:
        """Whether the template knows this step."""
        return self.reader.has(step)

    def keys(self, step: int) -> Page:
        """What it says to this one, without rows."""
        return self.reader.page(step, self.wanted_from(frozenset()))

    def page(self, step: int) -> Brought:
        """What it says to this one."""
        page = self.reader.page(step, self.wanted)
        if not any(name.endswith(ROWS) for name in page):
            return Brought(page, dict)
        told = self.from_rows.told(self.run, step)  # now: whoever keeps what was brought shall not keep the run
        return Brought(page, partial(self.from_rows.made, page, told))


def in_rows(pages: Sequence[Brought]) -> Iterator[tuple[range, Brought]]:
    """Pages, and their rows one below the other."""
    first = 0
    for one in pages:
        rows = range(first, first + len(one.page[OUT]))
        first = rows.stop
        yield rows, one


def _projected(
    block: Block, tokens: torch.Tensor, embedding: torch.Tensor | None, table: Table | None
) -> tuple[torch.Tensor, torch.Tensor]:
    attention = block.attention
    layers = attention.to_k.weight, attention.to_k.bias, attention.to_v.weight, attention.to_v.bias
    if embedding is None or table is None:
        normed = block.norm(tokens) if embedding is None else block.norm(tokens, emb=embedding)[0]
        return linear(normed, *layers[:2]), linear(normed, *layers[2:])
    told, width = block.norm.linear, 2 * tokens.shape[-1]
    moves = linear(silu(embedding), told.weight[:width], told.bias[:width])
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


def wanted_of(names: Iterable[str], from_rows: frozenset[str], far: tuple[str, ...] = ()) -> Wanted:
    """Of a page with these names: rows of some blocks, of all others keys and values."""
    rowed = {name.removesuffix(ROWS) for name in names if name.endswith(ROWS)}
    unused = {f"{name}{part}" for name in rowed & from_rows for part in (".k", ".v")}
    return Wanted(frozenset(unused | {name + ROWS for name in rowed - from_rows}), far)


def blocks_of(network: Any) -> Iterator[Block]:
    """All blocks whose keys and values can be made from what comes into them."""
    kind = type(network).__name__
    if kind == "UNet2DConditionModel":
        for path, module in network.named_modules():
            if type(module).__name__ == "Transformer2DModel":
                for number, block in enumerate(module.transformer_blocks):
                    if type(block.norm1) is torch.nn.LayerNorm and block.pos_embed is None:
                        yield Block(f"{path}.{number}", block, block.norm1, block.attn1)
    elif kind == "SD3Transformer2DModel":
        for number, block in enumerate(network.transformer_blocks):
            if getattr(block, "attn2", None) is None:
                yield Block(f"{number}", block, block.norm1, block.attn)
    else:
        first = len(network.transformer_blocks)
        for number, block in enumerate((*network.transformer_blocks, *network.single_transformer_blocks)):
            yield Block(f"{number}", block, block.norm1 if number < first else block.norm, block.attn)
