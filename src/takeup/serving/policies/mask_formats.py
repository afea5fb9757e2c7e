"""Which blocks of a step load rows instead of keys and values, if templates come from elsewhere beside the computation.

Rows are half as many bytes as keys and values, which are then made from them by two products for every token. A step
takes as long as its computation or its loads, whichever is longer, so the best choice evens both out: it is that of
`plan`. Blocks that are computed whole are not among the choices: engines do not offer them. They would pay on links
below some 25 GB/s, where rows of all blocks still take longer than the computation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from takeup.serving.policies.plan import BlockCost, plan

__all__ = ["BlockLoad", "loads_rows"]


@dataclass(frozen=True, slots=True)
class BlockLoad:
    """Bytes of keys and values and of rows; how long it takes to make the former of the latter."""

    kv_bytes: float
    rows_bytes: float
    made_s: float


def loads_rows(
    blocks: Sequence[BlockLoad], other_bytes: float, compute_s: float, link_bytes_per_s: float
) -> list[bool]:
    """For each block. The step computes for `compute_s` without rows, and loads `other_bytes` beside its blocks."""
    own_s, other_s = compute_s / max(1, len(blocks)), other_bytes / link_bytes_per_s
    costs = [BlockCost(0.0, 0.0, 0.0, other_s, other_s)]
    for block in blocks:
        made_s, rows_s = own_s + block.made_s, block.rows_bytes / link_bytes_per_s
        costs.append(BlockCost(made_s, made_s, own_s, rows_s, block.kv_bytes / link_bytes_per_s))
    ahead_s = sum(max(cost.kv_load_s, cost.output_load_s) for cost in costs)
    return [one == "output" for one in plan(costs, ("output", "kv"), ahead_s).formats[1:]]
