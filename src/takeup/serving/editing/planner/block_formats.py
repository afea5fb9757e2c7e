"""In which format each block of a step uses a template whose loads overlap with the computation."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from takeup.core.arrays import Ints
from takeup.errors import BadInput

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
MAX_STATES = 4096
NUM_GRAINS = 1000
SLACK = 1000  # nanoseconds: more than rounding to them can change
FAR = 2**62  # later than any plan ends


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
    costs, formats = _in_nanoseconds(blocks), [place for place, one in enumerate(FORMATS) if one in allowed]
    ahead, latest = round(ahead_s / NANOSECOND), _latest(costs, formats, known.step_s)
    chosen = _searched(costs, formats, ahead, latest) or _searched(_coarser(costs), formats, ahead, latest + FAR)
    if not chosen:
        return known
    return min(_timed([FORMATS[one] for one in chosen], blocks, ahead_s), known, key=lambda one: one.step_s)


def _searched(costs: Ints, formats: Sequence[int], ahead: int, latest: Ints) -> list[int]:
    """The formats of the plan with the shortest step; none if it takes more than `MAX_STATES` states.

    Columns of states: loaded until, computed until, whether unmasked rows are there, the state before, the format. In
    integers, because blocks repeat: equal sums in another order are then equal, and thousands of states become dozens.
    """
    states, parents = np.array([[-ahead, 0, 1, 0, 0]]), []
    for block, until in zip(costs, latest, strict=True):
        found = np.concatenate([_extended(states, block, what) for what in formats])
        states = _unbeaten(found[found[:, 1] <= until])
        if not 0 < len(states) <= MAX_STATES:
            return []
        parents.append(states[:, 3:])
    place = int(np.maximum(states[:, 1], states[:, 0] + ahead).argmin())
    chosen = []
    for steps in reversed(parents):
        place, what = steps[place].tolist()
        chosen.append(what)
    return chosen[::-1]


def _extended(states: Ints, costs: Ints, what: int) -> Ints:
    """All states after a block in this format. `costs`: computation x3, loads x3, load of rows."""
    loaded, computed, has_rows = states[:, 0], states[:, 1], states[:, 2]
    is_kv = FORMATS[what] == "kv"
    load = costs[len(FORMATS) + what] + (0 if is_kv else costs[-1] * (1 - has_rows))
    loaded = loaded + load
    start = np.where(load > 0, np.maximum(computed, loaded), computed)
    others = np.full_like(loaded, not is_kv), np.arange(len(states)), np.full_like(loaded, what)
    return np.column_stack([loaded, start + costs[what], *others])


def _unbeaten(found: Ints) -> Ints:
    """Only states for which no other is as good in all of load, computation and rows."""
    loaded, computed, has_rows, before, what = found.T
    found = found[np.lexsort((what, before, computed, -has_rows, loaded))]
    computed, has_rows = found[:, 1], found[:, 2] == 1
    least, least_without = (_least_before(np.where(kind, computed, FAR)) for kind in (has_rows, ~has_rows))
    kept: Ints = found[(computed < least) & (has_rows | (computed < least_without))]
    return kept


def _least_before(values: Ints) -> Ints:
    return np.concatenate([[FAR], np.minimum.accumulate(values)[:-1]])


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


def _latest(costs: Ints, formats: Sequence[int], known_s: float) -> Ints:
    """Latest completion of each block (ns) such that the rest, at its shortest, can still end by `known_s`."""
    shortest = costs[:, formats].min(axis=1)
    rest = shortest[::-1].cumsum()[::-1] - shortest
    return np.asarray(round(known_s / NANOSECOND) + SLACK - rest, np.int64)


def _in_nanoseconds(blocks: Sequence[BlockCost]) -> Ints:
    exact = np.array([block.seconds for block in blocks]).reshape(-1, 2 * len(FORMATS) + 1) / NANOSECOND
    return np.rint(exact).astype(np.int64)


def _coarser(costs: Ints) -> Ints:
    """Round loads up to a multiple of a grain, to bound the number of distinct load sums and thus of states."""
    loads = costs[:, len(FORMATS) :]
    grain = int(loads.max(axis=1).sum()) // NUM_GRAINS + 1
    return np.hstack([costs[:, : len(FORMATS)], -(-loads // grain) * grain])
