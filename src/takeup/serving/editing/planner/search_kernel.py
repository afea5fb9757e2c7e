"""Compiled search for the best plan: dynamic programming over Pareto-optimal states, in integer nanoseconds.

Integers, because blocks repeat: equal sums in another order are then equal, and thousands of states become dozens.
A state is (computed until, loaded until, unmasked rows available). It dominates another if it is no worse in all three.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Ints
from takeup.core.compiled import inner, kernel

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
