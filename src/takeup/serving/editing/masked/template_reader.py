"""Cached activations of a template for one step, per block as K/V or block input (rows), and the choice between them.

Keys and values computed from rows take half as many bytes to load, and two matmuls. What is loaded is chosen per block
by sizes, bandwidth and measured times.
"""

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from math import inf
from statistics import median
from typing import Any, NamedTuple

import torch
from torch.nn.functional import layer_norm, linear, rms_norm, silu

from takeup.serving.diffusion.contract import DenoisingRun
from takeup.serving.editing.masked.tokens import MAP, OUT, ROWS, Page
from takeup.serving.editing.masked.transformer_blocks import RotaryTable, TransformerBlock, blocks_of, embedded, rotate
from takeup.serving.editing.planner.block_formats import BlockLoad, balanced_formats
from takeup.serving.editing.templates.packing import PackedPage
from takeup.serving.editing.templates.template import WHOLE_PAGE, PageReader, PageSelection

# Compute keys and values of a template from cached block inputs (rows): half as many bytes, and two matmuls -----------
#
# The input of a block need not be loaded if the block before it is computed whole, for every token and with the text of
# the request. The masked call itself is the same either way.

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


# Read cached activations of a template for one step, per block as K/V or as block input (rows) ------------------------


@dataclass(frozen=True, slots=True)
class BlockForms:
    """Blocks that compute K/V from their input (`rows`); `whole` ones run fully, which gives the next block's input."""

    rows: frozenset[str] = frozenset()
    whole: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PageForm:
    """What is read of the pages of a template, and the blocks that are computed whole."""

    wanted: PageSelection = WHOLE_PAGE
    whole: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LoadedPage:
    """A loaded page, possibly with block inputs, and the function that computes keys and values from these."""

    page: Page
    made: Callable[[], Page]

    def whole(self) -> Page:
        """Keys and values of all blocks, and all other tensors except block inputs."""
        return {name: one for name, one in self.page.items() if not name.endswith(ROWS)} | dict(self.made())


@dataclass(frozen=True, slots=True)
class TemplatePages:
    """Template pages for the steps of a run."""

    reader: PageReader
    run: DenoisingRun
    from_rows: KvFromRows
    form: PageForm = PageForm()

    def formed(self, forms: BlockForms, far: tuple[str, ...] = ()) -> PageForm:
        """What to read for these formats; keys and values if the template is on the device."""
        names = self.reader.template.pages[0]
        if self.reader.is_near:
            return PageForm(page_selection(names, frozenset(), far=far))
        return PageForm(page_selection(names, forms.rows, self.from_rows.behind(forms.whole), far), forms.whole)

    def has(self, step: int) -> bool:
        """Whether the template has this step."""
        return self.reader.has(step)

    def keys(self, step: int) -> Page:
        """Page of a step with keys and values only, without block inputs."""
        return self.reader.page(step, self.formed(BlockForms()).wanted)

    def page(self, step: int) -> LoadedPage:
        """Page of a step, in the form of these pages."""
        page = self.reader.page(step, self.form.wanted)
        if not any(name.endswith(ROWS) for name in page):
            return LoadedPage(page, dict)
        whole = self.form.whole
        told = self.from_rows.conditioning(
            self.run, step, bool(whole)
        )  # now, so that the result does not reference the run
        return LoadedPage(page, partial(self.from_rows.made, page, told, whole))


def page_rows(pages: Sequence[LoadedPage]) -> Iterator[tuple[range, LoadedPage]]:
    """Pages, each with the range of its rows in the batch."""
    first = 0
    for one in pages:
        rows = range(first, first + len(one.page[OUT]))
        first = rows.stop
        yield rows, one


def page_selection(
    names: Iterable[str],
    from_rows: frozenset[str],
    behind_whole: frozenset[str] = frozenset(),
    far: tuple[str, ...] = (),
) -> PageSelection:
    """Read inputs of blocks `from_rows`, nothing of those also `behind_whole`, keys and values of the others."""
    rowed = {name.removesuffix(ROWS) for name in names if name.endswith(ROWS)}
    unused = {f"{name}{part}" for name in rowed & from_rows for part in (".k", ".v")}
    return PageSelection(
        frozenset(unused | {name + ROWS for name in rowed if name not in from_rows - behind_whole}), far
    )


# Choose per block whether to load K/V or block inputs from a template, by sizes, bandwidth and measured times ---------

ChooseForms = Callable[[Sequence[TemplatePages], float | None], BlockForms | None]
"""Of templates, and how long a call computes: the forms of all blocks; None if not known yet."""
PROBE_BYTES, NUM_PROBES, NUM_BEFORE, NUM_MORE = 64 << 20, 5, 6, 8
LOG = logging.getLogger(__name__)
cuda: Any = torch.cuda  # torch.cuda functions are not annotated


def load_all_kv(pages: Sequence[TemplatePages], compute_s: float | None) -> BlockForms:
    """Load keys and values of all blocks."""
    return BlockForms()


def fastest_forms(pages: Sequence[TemplatePages], compute_s: float | None) -> BlockForms | None:
    """Forms that minimize step time; None if not known yet. Templates on the device need no loads."""
    far = [one for one in pages if not one.reader.is_near]
    names = _rowed(far)
    if not names or compute_s is None:
        return None if names else BlockForms()
    packed = [one.reader.template.pages[one.reader.template.num_steps // 2] for one in far]
    of_blocks = {f"{name}{part}" for name in names for part in (".k", ".v", ROWS)}
    others = _bytes_of(packed, [one for one in packed[0] if one not in of_blocks and not one.endswith(MAP)])
    fed = far[0].from_rows.behind(frozenset(names))
    blocks = [_load_of(name, name in fed, far, packed) for name in names]
    chosen = balanced_formats(blocks, others, compute_s, _link_bytes_per_s(far[0].reader.device))
    by_name = dict(zip(names, chosen, strict=True))
    rows = frozenset(name for name, what in by_name.items() if what != "kv")
    return BlockForms(rows, frozenset(name for name in rows if by_name[name] == "full"))


def _rowed(far: Sequence[TemplatePages]) -> list[str]:
    """Blocks whose inputs are in all these templates, in the order of the network."""
    pages = [one.reader.template.pages[0] for one in far]
    return [name for name in far[0].from_rows.blocks if all(name + ROWS in page for page in pages)] if far else []


def _load_of(name: str, follows: bool, far: Sequence[TemplatePages], packed: Sequence[PackedPage]) -> BlockLoad:
    block = far[0].from_rows.blocks[name]
    sizes = _bytes_of(packed, block.parts), _bytes_of(packed, [name + ROWS])
    made_s, whole_s = (sum(_seconds(one, block, measure) for one in far) for measure in (_made_s, _whole_s))
    return BlockLoad(*sizes, made_s, whole_s, follows, block.follows and block.has_text)


def _bytes_of(packed: Sequence[PackedPage], names: Iterable[str]) -> float:
    return sum(page[name].size_bytes for name in names for page in packed if name in page)


# Speeds ---------------------------------------------------------------------------------------------------------------


def _seconds(
    pages: TemplatePages,
    block: TransformerBlock,
    measure: Callable[[TemplatePages, TransformerBlock, torch.Tensor], float],
) -> float:
    """Measured seconds, cached per measure, input shape and block type."""
    like, known = pages.reader.template.pages[0][block.name + ROWS], pages.from_rows.seconds
    kind = measure.__name__, like.shape, type(block.module)
    if kind not in known:
        rows = torch.zeros(like.shape, dtype=like.dtype, device=pages.reader.device)
        known[kind] = measure(pages, block, rows)
    return known[kind]


def _made_s(pages: TemplatePages, block: TransformerBlock, rows: torch.Tensor) -> float:
    """Marginal seconds to compute keys and values of one block from its input."""
    from_rows = pages.from_rows
    every = from_rows.blocks.values()
    same = [one.name for one in every if type(one.module) is type(block.module) and _takes(one, rows)]
    told = from_rows.conditioning(pages.run, 0)
    few = {one + ROWS: rows for one in same[:1]}, {one + ROWS: rows for one in same[: 1 + NUM_MORE]}
    one_s, more_s = (_spent_s(partial(from_rows.made, page, told), rows.device) for page in few)
    return max(0.0, more_s - one_s) / max(1, len(few[1]) - 1)


def _whole_s(pages: TemplatePages, block: TransformerBlock, rows: torch.Tensor) -> float:
    """Seconds to compute a block for all tokens, with launch overhead, because it has many kernels."""
    from_rows = pages.from_rows
    try:
        told = from_rows.conditioning(pages.run, 0, has_whole=True)
        with from_rows.plain(), torch.no_grad():
            work = partial(from_rows.computed, block, rows, told, (rows, told.text))
            return _spent_s(work, rows.device, num_before=0)
    except Exception as problem:
        LOG.warning("blocks like %s are not computed whole: %s", block.name, problem)
        return inf


def _takes(block: TransformerBlock, rows: torch.Tensor) -> bool:
    return bool(block.attention.to_k.in_features == rows.shape[-1])


@lru_cache(maxsize=8)
def _link_bytes_per_s(device: torch.device) -> float:
    """Bandwidth from pinned host memory to the device."""
    return PROBE_BYTES / _spent_s(partial(_copy, *_both_ends(device)), device)


@lru_cache(maxsize=1)
def _both_ends(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    there = torch.empty(PROBE_BYTES, dtype=torch.uint8, pin_memory=True)
    return there, torch.empty(PROBE_BYTES, dtype=torch.uint8, device=device)


def _copy(there: torch.Tensor, here: torch.Tensor) -> None:
    here.copy_(there, non_blocking=True)


def _spent_s(work: Callable[[], object], device: torch.device, num_before: int = NUM_BEFORE) -> float:
    """Median device seconds; `num_before` copies are enqueued first, which hide the launch overhead."""
    spent = []
    for _ in range(NUM_PROBES):
        for _ in range(num_before):
            _copy(*_both_ends(device))
        begun, ended = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        begun.record()
        work()
        ended.record()
        ended.synchronize()
        spent.append(float(begun.elapsed_time(ended)) / 1e3)
    return median(spent[1:])
