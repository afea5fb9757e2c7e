"""Token capacity of a masked call: reuse that of an already recorded CUDA graph, unless it is much too large.

Recording a call takes as long as some hundred steps, so a mask is rather padded to a larger recorded capacity. The
cost of a call of n rows, in units of whole images, is that of `mask_batches`.
"""

from __future__ import annotations

from collections.abc import Collection

from takeup.serving.policies.mask_batches import DEFAULT_CALL_SHARE

TokenCounts = tuple[int, ...]
"""How many tokens are computed on every grid of a network, the finest first."""
MAX_COST_RATIO = 1.25


def cheapest_capacity(
    needed: TokenCounts, known: Collection[TokenCounts], num_rows: int, num_tokens: int
) -> TokenCounts:
    """The cheapest known capacity that fits, if it costs at most a quarter more than the exact one; else `needed`.

    The finest grid has `num_tokens`.
    """

    def cost(rooms: TokenCounts) -> float:
        return DEFAULT_CALL_SHARE + num_rows * rooms[0] / num_tokens

    fitting = [rooms for rooms in known if all(room >= least for room, least in zip(rooms, needed, strict=True))]
    found = min(fitting, key=cost, default=needed)
    return found if cost(found) <= MAX_COST_RATIO * cost(needed) else needed
