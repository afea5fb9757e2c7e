"""The ring order of ranks: a slow link hurts only between neighbours, and the order is free.

The time of a ring is that of its slowest link, so the order with the fastest slowest link is sought (bottleneck TSP).
That is hard in general (a Hamiltonian cycle), but a few slow links are easily avoided: segments of the ring are
reversed (2-opt) as long as that makes its slowest links faster. Small rings are enumerated completely.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations

from takeup.core.arrays import Floats

FEW_RANKS = 7  # 360 orders


def slowest_s(order: Sequence[int], link_s: Floats) -> float:
    """The time of the slowest link of the ring; `link_s[a, b]` is that of the link between two ranks."""
    return float(max((link_s[one, other] for one, other in _ring_links(order)), default=0.0))


def best_ring(order: Sequence[int], link_s: Floats) -> tuple[int, ...]:
    """An order with a fast slowest link; the given one if no better is found."""
    if len(order) < 4:
        return tuple(order)  # all orders have the same links
    if len(order) <= FEW_RANKS:
        orders = [(order[0], *rest) for rest in permutations(order[1:]) if rest[0] <= rest[-1]]
        return min([tuple(order), *orders], key=lambda each: slowest_s(each, link_s))
    return _two_opt(tuple(order), link_s)


def _ring_links(order: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(order, (*order[1:], order[0]), strict=True)) if len(order) > 1 else []


def _two_opt(order: tuple[int, ...], link_s: Floats) -> tuple[int, ...]:
    """Reverse segments of the ring while that helps."""
    while True:
        turned = min(_reversals(order), key=lambda each: _badness(each, link_s))
        if _badness(turned, link_s) >= _badness(order, link_s):
            return order
        order = turned


def _reversals(order: tuple[int, ...]) -> list[tuple[int, ...]]:
    places = combinations(range(1, len(order) + 1), 2)
    return [order[:start] + order[start:end][::-1] + order[end:] for start, end in places if end - start > 1]


def _badness(order: Sequence[int], link_s: Floats) -> tuple[float, ...]:
    """Link times in decreasing order, compared lexicographically: fewer slow ones are better, too."""
    return tuple(sorted((float(link_s[pair]) for pair in _ring_links(order)), reverse=True))
