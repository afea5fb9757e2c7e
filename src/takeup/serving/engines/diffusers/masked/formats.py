"""Choose per block whether to load K/V or block inputs from a template, by sizes, bandwidth and measured times."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from math import inf
from statistics import median
from typing import Any

import torch

from takeup.serving.engines.diffusers.masked.brought import BlockForms, TemplatePages
from takeup.serving.engines.diffusers.masked.pages import MAP, ROWS
from takeup.serving.engines.diffusers.masked.row_blocks import TransformerBlock
from takeup.serving.engines.templates.packing import PackedPage
from takeup.serving.policies.mask_formats import BlockLoad, balanced_formats

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
