"""Dense numbers for arbitrary 64-bit keys, in the order in which they are first seen.

How it works. Open addressing: a key's slot in the table is the top bits of a product; the table holds only numbers,
the keys are in a separate array in the order of their numbers. So frequent keys, which are seen early, share a few
cache lines. The table doubles when it is half full.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from takeup.core.compiled import inner, kernel

Keys = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.int32]
EMPTY = -1
FIRST_BITS = 12
MULTIPLIER = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio: Fibonacci hashing


@inner
def _place(table: Ids, shift: np.uint64, uniques: Keys, key: np.uint64) -> np.uint64:
    """The slot of the key in the table, or the empty slot where it belongs."""
    mask = np.uint64(len(table) - 1)
    mixed = (key ^ (key >> np.uint64(32))) * np.uint64(MULTIPLIER)
    place = mixed >> shift
    while table[place] != EMPTY and uniques[np.uint64(table[place])] != key:
        place = (place + np.uint64(1)) & mask
    return place


@inner
def _fill(uniques: Keys, num_uniques: int, num_bits: int) -> Ids:
    """A new table with 2**num_bits slots, filled with the numbers so far."""
    table = np.full(1 << num_bits, EMPTY, np.int32)
    for number in range(num_uniques):
        table[_place(table, np.uint64(64 - num_bits), uniques, uniques[number])] = number
    return table


@kernel
def renumber(keys: Keys) -> tuple[Ids, Keys]:
    """The number of every key, and the key of every number."""
    ids = np.empty(len(keys), np.int32)
    num_bits = FIRST_BITS
    uniques = np.empty(1 << (num_bits - 1), np.uint64)
    num_uniques = 0
    table = _fill(uniques, 0, num_bits)
    for index in range(len(keys)):
        key = keys[index]
        place = _place(table, np.uint64(64 - num_bits), uniques, key)
        number = table[place]
        if number == EMPTY:
            number = num_uniques
            table[place] = number
            uniques[number] = key
            num_uniques += 1
            if num_uniques == len(uniques):
                num_bits += 1
                uniques = np.concatenate((uniques, np.empty(num_uniques, np.uint64)))
                table = _fill(uniques, num_uniques, num_bits)
        ids[index] = number
    return ids, uniques[:num_uniques].copy()


@kernel
def first_values(ids: Ids, values: npt.NDArray[np.int64], num_ids: int) -> npt.NDArray[np.int64]:
    """The value at the first occurrence of every number; first occurrences must be in ascending order."""
    first = np.empty(num_ids, np.int64)
    num_seen = 0
    for index in range(len(ids)):
        if ids[index] == num_seen:
            first[num_seen] = values[index]
            num_seen += 1
    return first
