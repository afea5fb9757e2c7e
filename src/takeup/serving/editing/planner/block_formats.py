"""In which format each block of a step uses a template whose loads overlap with the computation."""

import math
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass
from typing import Literal, get_args

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
# unmasked rows are missing, and a block that needs them loads them first. `plan_formats` searches all combinations: of
# partial plans only the Pareto-optimal ones are extended. The rule of
# FlashPS (EuroSys 2026, Algorithm 1), which decides block by block without lookahead, is `greedy_plan`.
#
# With prefetch buffers for `ahead_s` of loads, the loads of the next step begin before it does. In steady state a step
# takes the larger of the end of its computation and the sum of its loads.

Format = Literal["full", "output", "kv"]
FORMATS: tuple[Format, ...] = get_args(Format)
NANOSECOND = 1e-9
State = tuple[float, float, bool]
"""Of a partial plan: computed until, loaded until, whether unmasked rows are there."""


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
    """The optimal plan.

    In whole nanoseconds, because blocks repeat: equal sums in another order are then equal, and thousands of partial
    plans become dozens.
    """
    ahead, costs = float(round(ahead_s / NANOSECOND)), list(map(_in_nanoseconds, blocks))
    partial: dict[State, tuple[Format, ...]] = {(0.0, -ahead, True): ()}
    known, left = _known(costs, allowed, ahead), sum(map(_shortest, costs))
    for block in costs:
        left -= _shortest(block)
        found: dict[State, tuple[Format, ...]] = {}
        for state, formats in partial.items():
            for what in allowed:
                after = _after(*state, block, what)
                if after[0] + left <= known:
                    found.setdefault((*after, what != "kv"), (*formats, what))
        partial = _unbeaten(found)
    best = min(partial, key=lambda state: max(state[0], state[1] + ahead))
    return _timed(partial[best], blocks, ahead_s)


def _known(costs: Sequence[BlockCost], allowed: Collection[Format], ahead: float) -> float:
    """The shortest step with one format for all blocks, or by the published rule: longer plans are not followed."""
    plain = [step_s([what] * len(costs), costs, ahead) for what in allowed]
    greedy = [greedy_plan(costs, what, ahead).step_s for what in allowed if "full" in allowed]
    return min(plain + greedy)


def _unbeaten(found: dict[State, tuple[Format, ...]]) -> dict[State, tuple[Format, ...]]:
    """Only partial plans for which no other is as good in all of load, computation and rows."""
    least, kept = {True: math.inf, False: math.inf}, {}
    for state in sorted(found, key=lambda one: (one[1], not one[2], one[0])):
        computed, _, has_rows = state
        if computed < least[True] and (has_rows or computed < least[False]):
            kept[state], least[has_rows] = found[state], computed
    return kept


def _shortest(block: BlockCost) -> float:
    return min(block.full_s, block.output_s, block.kv_s)


def _in_nanoseconds(block: BlockCost) -> BlockCost:
    return BlockCost(*(float(round(seconds / NANOSECOND)) for seconds in astuple(block)))


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
