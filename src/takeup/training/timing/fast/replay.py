"""Numba kernel: run a given order. A rank does its next operation as soon as its input has arrived.

No clock is needed: a message's arrival follows from what its sender did before, so ranks are advanced in turn, each as
far as its inputs are known. When none can advance, the orders wait for each other.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from takeup.core.compiled import kernel
from takeup.training.timing.fast.traffic import NEVER, NO_WIRE, Course, free_wires, lane_free_at, passes_on, send

__all__ = ["STUCK", "replay"]

Ints = npt.NDArray[np.int64]
STUCK = -1


@kernel
def replay(course: Course, codes: Ints, offsets: Ints, starts: Ints, ends: Ints, peaks: Ints) -> int:
    """Fill in starts, ends and the most live micro-batches by rank; the iteration time, or STUCK."""
    num_ranks, (_, num_stages, count) = course.first.size - 1, course.lasts.shape
    arrival = np.full((2, num_stages, count), NEVER, np.int64)
    arrival[0, 0, :] = 0
    free, live = np.zeros(num_ranks, np.int64), np.zeros(num_ranks, np.int64)
    at, wires = offsets[:-1].copy(), free_wires(course)
    whole, left = 0, codes.size
    while left > 0:
        before = left
        for rank in range(num_ranks):
            while at[rank] < offsets[rank + 1]:
                index = at[rank]
                cell, kind = codes[index] // 4, codes[index] % 4
                stage, microbatch = cell // count, cell % count
                ready = 0 if kind == 2 else arrival[0 if kind == 0 else 1, stage, microbatch]
                if ready == NEVER:
                    break
                start = max(free[rank], ready)
                end = start + course.lasts[kind, stage, microbatch]
                starts[index], ends[index] = start, end
                live[rank] += 1 if kind == 0 else 0
                peaks[rank] = max(peaks[rank], live[rank])
                live[rank] -= 1 if kind >= 2 else 0
                target, wire = passes_on(course, stage, kind)
                arrives = 0
                if target >= 0:
                    arrives = end
                    if wire != NO_WIRE:
                        arrives = send(course, wires, wire, min(stage, target), microbatch, end)
                    arrival[0 if kind == 0 else 1, target, microbatch] = arrives
                elif kind == 0:
                    arrival[1, stage, microbatch] = end
                free[rank] = lane_free_at(course, wires, rank, end, arrives)
                whole = max(whole, end + course.tail[stage])
                at[rank] += 1
                left -= 1
        if left == before:
            return STUCK
    return whole
