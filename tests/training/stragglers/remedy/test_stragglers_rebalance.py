"""Shares of micro-batches: the least maximum, compared with trying everything and with handing out one by one."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.errors import BadInput
from takeup.training.stragglers.remedy.rebalance import rebalance

paces = st.floats(0.01, 10.0)


def splits(total: int, num_parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut a number into parts of at least one."""
    if num_parts == 1:
        yield (total,)
        return
    for first in range(1, total - num_parts + 2):
        yield from ((first, *rest) for rest in splits(total - first, num_parts - 1))


def longest_s(paces_s: Sequence[float], counts: Sequence[int]) -> float:
    return max(count * pace_s for pace_s, count in zip(paces_s, counts, strict=True))


def one_by_one(paces_s: Sequence[float], num_microbatches: int) -> float:
    """The plain way: each micro-batch to the group that would be done with it first."""
    counts = [1] * len(paces_s)
    ends = [(2 * pace_s, index) for index, pace_s in enumerate(paces_s)]
    heapq.heapify(ends)
    for _ in range(num_microbatches - len(paces_s)):
        _, index = ends[0]
        counts[index] += 1
        heapq.heapreplace(ends, ((counts[index] + 1) * paces_s[index], index))
    return longest_s(paces_s, counts)


@given(st.lists(paces, min_size=1, max_size=4), st.integers(0, 8))
def test_no_other_split_is_faster(groups: list[float], more: int) -> None:
    found = rebalance(groups, len(groups) + more)
    best_s = min(longest_s(groups, counts) for counts in splits(len(groups) + more, len(groups)))

    assert sum(found.counts) == len(groups) + more
    assert found.iteration_s == pytest.approx(best_s, rel=1e-12)
    assert found.iteration_s == pytest.approx(longest_s(groups, found.counts), rel=1e-12)


@given(st.lists(paces, min_size=1, max_size=60), st.integers(0, 2000))
def test_all_at_once_is_as_good_as_one_by_one(groups: list[float], more: int) -> None:
    found = rebalance(groups, len(groups) + more)

    assert found.iteration_s == pytest.approx(one_by_one(groups, len(groups) + more), rel=1e-9)
    assert min(found.counts) >= 1


def test_the_published_objective_would_lose_a_second_of_six() -> None:
    found = rebalance([1.0, 1.0, 3.0], 11)

    assert found.counts == (5, 5, 1)
    assert found.iteration_s == 5.0


def test_one_slow_group_of_four_gets_less_and_all_are_done_together() -> None:
    found = rebalance([0.1, 0.1, 0.15, 0.1], 32)

    assert sorted(found.counts) == [6, 8, 9, 9]
    assert found.counts[2] == 6
    assert found.iteration_s == pytest.approx(0.9)


def test_gradients_weighted_by_micro_batch_are_those_of_the_whole_batch() -> None:
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(11, 5))
    shares = rebalance([1.0, 1.0, 3.0], 11)
    sums = np.add.reduceat(gradients, [0, *np.cumsum(shares.counts[:-1])])

    assert sums.sum(axis=0) / 11 == pytest.approx(gradients.mean(axis=0), rel=1e-12)


@pytest.mark.parametrize(("num_groups", "num_microbatches"), [(3, 2), (0, 6)])
def test_impossible_shares_are_refused(num_groups: int, num_microbatches: int) -> None:
    message = f"{num_microbatches} micro-batches for {num_groups} groups; every group needs at least one"
    with pytest.raises(BadInput, match=message):
        rebalance([1.0] * num_groups, num_microbatches)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_times_must_be_times(value: float) -> None:
    with pytest.raises(BadInput, match="must be finite and above zero"):
        rebalance([1.0, value], 4)
