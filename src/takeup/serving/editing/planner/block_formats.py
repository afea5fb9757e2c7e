"""In which format each block of a step uses a template whose loads overlap with the computation.

How it works. Pages are prefetched one step ahead, so a step takes the longer of its computation and its loads. A block
loads keys and values (`kv`), or half as many bytes of input rows, from which two matmuls per token compute keys and
values (`output`), or it is computed for all tokens (`full`), which gives the next block its rows without a load. The
best choice balances computation and loads: a knapsack by dynamic programming over blocks, with loads in grains.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Ints
from takeup.core.compiled import inner, kernel
from takeup.errors import BadInput

# Compiled search for the best plan: dynamic programming over Pareto-optimal states, in integer nanoseconds ------------
#
# Integers, because blocks repeat: equal sums in another order are then equal, and thousands of states become dozens. A
# state is (computed until, loaded until, unmasked rows available). It dominates another if it is no worse in all three.


FULL, OUTPUT, KV = 0, 1, 2
NUM_FORMATS = 3

Small = npt.NDArray[np.int32]


@inner
def after(computed: int, loaded: int, has_rows: bool, costs: Ints, what: int) -> tuple[int, int]:
    """Completion times (computed, loaded) after a block in this format.

    `costs`: computation x3, loads x3, load of rows.
    """
    load = costs[NUM_FORMATS + what]
    if what != KV and not has_rows:
        load += costs[2 * NUM_FORMATS]
    loaded += load
    start = max(computed, loaded) if load > 0 else computed
    return start + costs[what], loaded


@inner
def _candidates(states: Ints, num_states: int, costs: Ints, allowed: Small, latest: int, found: Ints) -> int:
    """Extend every state by every allowed format, pruning those computed later than `latest`.

    Rows of `found`: loaded, computed, has rows, parent, format.
    """
    num_found = 0
    for number in range(num_states):
        for what in range(NUM_FORMATS):
            if allowed[what]:
                has_rows = states[number, 2] == 1
                computed, loaded = after(states[number, 0], states[number, 1], has_rows, costs, what)
                if computed > latest:
                    continue
                found[num_found, 0], found[num_found, 1] = loaded, computed
                found[num_found, 2] = 0 if what == KV else 1
                found[num_found, 3], found[num_found, 4] = number, what
                num_found += 1
    return num_found


@inner
def _unbeaten(found: Ints, num_found: int, states: Ints, parents: Small, formats: Small) -> int:
    """Keep the non-dominated states; returns their number, or -1 if there are more than fit."""
    order = np.argsort(found[:num_found, 0], kind="mergesort")
    least = np.full(2, np.iinfo(np.int64).max)
    num_states, first = 0, 0
    while first < num_found:
        last = first
        while last + 1 < num_found and found[order[last + 1], 0] == found[order[first], 0]:
            last += 1
        for rows in (1, 0):
            best = -1
            for place in range(first, last + 1):
                one = order[place]
                if found[one, 2] == rows and (best < 0 or found[one, 1] < found[best, 1]):
                    best = one
            if best < 0 or found[best, 1] >= least[rows] or found[best, 1] >= least[1]:
                continue
            if num_states == len(parents):
                return -1
            least[rows] = found[best, 1]
            states[num_states, 0], states[num_states, 1], states[num_states, 2] = found[best, 1], found[best, 0], rows
            parents[num_states], formats[num_states] = found[best, 3], found[best, 4]
            num_states += 1
        first = last + 1
    return num_states


@kernel
def best_formats(costs: Ints, allowed: Small, ahead: int, latest: Ints, max_states: int) -> Any:
    """The formats of the plan with the shortest step, or an empty array if more than `max_states` states are needed.

    `ahead`: duration of the loads prefetched before the step begins, which must be prefetched again for the next one.
    `latest`: latest completion of each block for the step to be no longer than a known plan.
    """
    num_blocks = len(costs)
    states = np.zeros((max_states, 3), np.int64)
    parents = np.zeros((num_blocks, max_states), np.int32)
    formats = np.zeros((num_blocks, max_states), np.int32)
    found = np.zeros((NUM_FORMATS * max_states, 5), np.int64)
    states[0, 1], states[0, 2] = -ahead, 1
    num_states = 1
    for block in range(num_blocks):
        num_found = _candidates(states, num_states, costs[block], allowed, latest[block], found)
        num_states = _unbeaten(found, num_found, states, parents[block], formats[block])
        if num_states < 0:
            return np.zeros(0, np.int32)
    place = 0
    for number in range(num_states):
        mine = max(states[number, 0], states[number, 1] + ahead)
        if mine < max(states[place, 0], states[place, 1] + ahead):
            place = number
    chosen = np.zeros(num_blocks, np.int32)
    for block in range(num_blocks - 1, -1, -1):
        chosen[block] = formats[block, place]
        place = parents[block, place]
    return chosen


# Which activations of a template each block loads and which it computes, to minimise the step time --------------------
#
# How it works. A block of an edited image can be run in three formats:
#
#     full      every token is computed; nothing is loaded
#     output    the unmasked rows of its output are loaded; keys and values are computed for all tokens
#     kv        keys and values of the unmasked tokens are loaded; nothing of these tokens is computed
#
# Loads run sequentially, concurrently with the computation; a block waits for its own load. After a block in `kv` the
# unmasked rows are missing, and a block that needs them loads them first. `plan_formats` searches all combinations: a
# partial plan is a pair (computed until, loaded until), and only Pareto-optimal pairs are extended. The rule of
# FlashPS (EuroSys 2026, Algorithm 1), which decides block by block without lookahead, is `greedy_plan`.
#
# With prefetch buffers for `ahead_s` of loads, the loads of the next step begin before it does. In steady state a step
# takes the larger of the end of its computation and the sum of its loads.

Format = Literal["full", "output", "kv"]
FORMATS: tuple[Format, ...] = get_args(Format)
NANOSECOND = 1e-9
NUM_STATES = (256, 4096)
NUM_GRAINS = 1000
SLACK = 1000  # nanoseconds: more than rounding to them can change
FAR = np.iinfo(np.int64).max

CostTable = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BlockCost:
    """Seconds of one block and of its loads, by format; `rows_load_s` is the load of missing input rows."""

    full_s: float
    output_s: float
    kv_s: float
    output_load_s: float
    kv_load_s: float
    rows_load_s: float = 0.0

    def __post_init__(self) -> None:
        if not all(0 <= one < float("inf") for one in self.seconds):
            raise BadInput(f"the costs of a block are {self.seconds}; give seconds from zero up")

    @property
    def seconds(self) -> tuple[float, ...]:
        """Computation by format, loads by format, the load of rows."""
        loads = (0.0, self.output_load_s, self.kv_load_s)
        return (self.full_s, self.output_s, self.kv_s, *loads, self.rows_load_s)


@dataclass(frozen=True, slots=True)
class BlockPlan:
    """A format for every block, and the resulting step time."""

    formats: tuple[Format, ...]
    step_s: float


def plan_formats(blocks: Sequence[BlockCost], allowed: Collection[Format] = FORMATS, ahead_s: float = 0.0) -> BlockPlan:
    """The optimal plan. If the search has too many states, loads are rounded up to a thousandth of their sum."""
    if not blocks:
        return BlockPlan((), 0.0)
    known = min(_known(blocks, allowed, ahead_s), key=lambda one: one.step_s)
    costs, flags = _in_nanoseconds(blocks), np.array([one in allowed for one in FORMATS], np.int32)
    ahead, latest = round(ahead_s / NANOSECOND), _latest(costs, flags, known.step_s)
    for max_states in NUM_STATES:
        chosen = best_formats(costs, flags, ahead, latest, max_states)
        if len(chosen):
            break
    else:
        chosen = best_formats(_coarser(costs), flags, ahead, np.full(len(blocks), FAR), NUM_STATES[-1])
    found = _timed([FORMATS[one] for one in chosen], blocks, ahead_s)
    return min(found, known, key=lambda one: one.step_s)


def greedy_plan(blocks: Sequence[BlockCost], cached: Format, ahead_s: float = 0.0) -> BlockPlan:
    """The FlashPS rule: block by block, load if the block then finishes no later than when computed in full."""
    formats: list[Format] = []
    computed_s, loaded_s, has_rows = 0.0, -ahead_s, True
    for block in blocks:
        loading = _after(computed_s, loaded_s, has_rows, block, cached)
        computing = _after(computed_s, loaded_s, has_rows, block, "full")
        formats.append(cached if loading[0] <= computing[0] else "full")
        computed_s, loaded_s = loading if formats[-1] == cached else computing
        has_rows = formats[-1] != "kv"
    return _timed(formats, blocks, ahead_s)


def step_s(formats: Sequence[Format], blocks: Sequence[BlockCost], ahead_s: float = 0.0) -> float:
    """Step time with these formats, in seconds."""
    computed_s, loaded_s, has_rows = 0.0, -ahead_s, True
    for what, block in zip(formats, blocks, strict=True):
        computed_s, loaded_s = _after(computed_s, loaded_s, has_rows, block, what)
        has_rows = what != "kv"
    return max(computed_s, loaded_s + ahead_s)


def _after(computed_s: float, loaded_s: float, has_rows: bool, block: BlockCost, what: Format) -> tuple[float, float]:
    place = FORMATS.index(what)
    load_s = block.seconds[len(FORMATS) + place]
    if what != "kv" and not has_rows:
        load_s += block.rows_load_s
    loaded_s += load_s
    return (max(computed_s, loaded_s) if load_s > 0 else computed_s) + block.seconds[place], loaded_s


def _timed(formats: Sequence[Format], blocks: Sequence[BlockCost], ahead_s: float) -> BlockPlan:
    return BlockPlan(tuple(formats), step_s(formats, blocks, ahead_s))


def _known(blocks: Sequence[BlockCost], allowed: Collection[Format], ahead_s: float) -> Iterator[BlockPlan]:
    """Baseline plans (one format for all blocks, and greedy), used as upper bounds of the search."""
    for what in allowed:
        yield _timed([what] * len(blocks), blocks, ahead_s)
        if what != "full" and "full" in allowed:
            yield greedy_plan(blocks, what, ahead_s)


def _latest(costs: CostTable, flags: npt.NDArray[np.int32], known_s: float) -> CostTable:
    """Latest completion of each block (ns) such that the rest, at its shortest, can still end by `known_s`."""
    shortest = costs[:, : len(FORMATS)][:, flags == 1].min(axis=1)
    rest = shortest[::-1].cumsum()[::-1] - shortest
    return np.asarray(round(known_s / NANOSECOND) + SLACK - rest, np.int64)


def _in_nanoseconds(blocks: Sequence[BlockCost]) -> CostTable:
    exact = np.array([block.seconds for block in blocks]).reshape(-1, 2 * len(FORMATS) + 1) / NANOSECOND
    return np.rint(exact).astype(np.int64)


def _coarser(costs: CostTable) -> CostTable:
    """Round loads up to a multiple of a grain, to bound the number of distinct load sums and thus of states."""
    loads = costs[:, len(FORMATS) :]
    grain = int(loads.max(axis=1).sum()) // NUM_GRAINS + 1
    return np.hstack([costs[:, : len(FORMATS)], -(-loads // grain) * grain])


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
