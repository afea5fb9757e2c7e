"""In which format each block of a step uses a template whose loads overlap with the computation.

How it works. Pages are prefetched one step ahead, so a step takes the longer of its computation and its loads. A block
loads keys and values (`kv`), or half as many bytes of input rows, from which two matmuls per token compute keys and
values (`output`), or it is computed for all tokens (`full`), which gives the next block its rows without a load. The
best choice balances computation and loads: a knapsack by dynamic programming over blocks, with loads in grains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
import numpy.typing as npt

from takeup.serving.policies.plan import FORMATS, Format

NUM_LOAD_GRAINS = 2048
FormatOption = tuple[Format, int, float]
"""A format, the grains it loads and the seconds it computes."""


@dataclass(frozen=True, slots=True)
class BlockLoad:
    """Bytes of keys and values and of rows; `made_s`: seconds to compute keys and values from the rows.

    `whole_s`: extra seconds to compute it for all tokens. If it `follows`, a preceding `full` block provides its rows;
    if it `needs_before`, it can be `full` only after such a block.
    """

    kv_bytes: float
    rows_bytes: float
    made_s: float
    whole_s: float = inf
    follows: bool = False
    needs_before: bool = False


def balanced_formats(
    blocks: Sequence[BlockLoad], other_bytes: float, compute_s: float, link_bytes_per_s: float
) -> list[Format]:
    """A format per block. `compute_s`: step time if all blocks use `kv`; `other_bytes` are loaded in any case."""
    most = sum(max(block.kv_bytes, block.rows_bytes) for block in blocks)
    if most == 0:
        return ["kv"] * len(blocks)
    grain = most / NUM_LOAD_GRAINS
    least_s, chosen = _searched(blocks, grain)
    loads_s = (other_bytes + np.arange(least_s.shape[1]) * grain) / link_bytes_per_s
    steps_s = np.maximum(compute_s + least_s, loads_s)
    is_left, loaded = map(int, np.unravel_index(steps_s.argmin(), steps_s.shape))
    return _traced(blocks, grain, chosen, is_left, loaded)


def _searched(blocks: Sequence[BlockLoad], grain: float) -> tuple[npt.NDArray[np.float64], list[npt.NDArray[np.int8]]]:
    """Least computation by (last block provides rows, grains loaded), and the choices for the traceback."""
    size = sum(round(max(block.kv_bytes, block.rows_bytes) / grain) for block in blocks) + 1
    least_s = np.full((2, size), inf)
    least_s[0, 0] = 0.0
    chosen = []
    for block in blocks:
        next_s, how = np.full((2, size), inf), np.zeros((2, size), np.int8)
        for came_left in (0, 1):
            for what, load, spent_s in _moves(block, bool(came_left), grain):
                is_left = int(what == "full")
                found = least_s[came_left, : size - load] + spent_s
                is_better = found < next_s[is_left, load:]
                next_s[is_left, load:][is_better] = found[is_better]
                how[is_left, load:][is_better] = 2 * FORMATS.index(what) + came_left
        least_s = next_s
        chosen.append(how)
    return least_s, chosen


def _moves(block: BlockLoad, is_left: bool, grain: float) -> Iterator[FormatOption]:
    """The options of a block, given whether the preceding one provides rows."""
    rows = 0 if is_left and block.follows else round(block.rows_bytes / grain)
    yield "kv", round(block.kv_bytes / grain), 0.0
    yield "output", rows, block.made_s
    if isfinite(block.whole_s) and (is_left or not block.needs_before):
        yield "full", rows, block.made_s + block.whole_s


def _traced(
    blocks: Sequence[BlockLoad], grain: float, chosen: list[npt.NDArray[np.int8]], is_left: int, loaded: int
) -> list[Format]:
    """Trace the formats of a result back from the last block to the first."""
    found: list[Format] = []
    for block, how in zip(reversed(blocks), reversed(chosen), strict=True):
        place, came_left = divmod(int(how[is_left, loaded]), 2)
        found.append(FORMATS[place])
        loaded -= next(load for what, load, _ in _moves(block, bool(came_left), grain) if what == found[-1])
        is_left = came_left
    return found[::-1]
