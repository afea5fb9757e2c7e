"""Shares of micro-batches: the least maximum, compared with trying everything and with handing out one by one."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.errors import BadInput
from takeup.training.stragglers.remedy.rebalance import Pace, rebalance

times = st.floats(0.01, 10.0)
paces = st.builds(Pace, times, st.just(0.0) | times)


def splits(total: int, num_parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to cut a number into parts of at least one."""
    if num_parts == 1:
        yield (total,)
        return
    for first in range(1, total - num_parts + 2):
        yield from ((first, *rest) for rest in splits(total - first, num_parts - 1))


def longest_s(groups: Sequence[Pace], counts: Sequence[int]) -> float:
    return max(group.fill_s + count * group.microbatch_s for group, count in zip(groups, counts, strict=True))


def one_by_one(groups: Sequence[Pace], num_microbatches: int) -> float:
    """The plain way: each micro-batch to the group that would be done with it first."""
    counts = [1] * len(groups)
    ends = [(group.fill_s + 2 * group.microbatch_s, index) for index, group in enumerate(groups)]
    heapq.heapify(ends)
    for _ in range(num_microbatches - len(groups)):
        _, index = ends[0]
        counts[index] += 1
        group = groups[index]
        heapq.heapreplace(ends, (group.fill_s + (counts[index] + 1) * group.microbatch_s, index))
    return longest_s(groups, counts)


@given(st.lists(paces, min_size=1, max_size=4), st.integers(0, 8))
def test_no_other_split_is_faster(groups: list[Pace], more: int) -> None:
    found = rebalance(groups, len(groups) + more)
    best_s = min(longest_s(groups, counts) for counts in splits(len(groups) + more, len(groups)))

    assert sum(found.counts) == len(groups) + more
    assert found.iteration_s == pytest.approx(best_s, rel=1e-12)
    assert found.iteration_s == pytest.approx(longest_s(groups, found.counts), rel=1e-12)


@given(st.lists(paces, min_size=1, max_size=60), st.integers(0, 2000))
def test_all_at_once_is_as_good_as_one_by_one(groups: list[Pace], more: int) -> None:
    found = rebalance(groups, len(groups) + more)

    assert found.iteration_s == pytest.approx(one_by_one(groups, len(groups) + more), rel=1e-9)
    assert min(found.counts) >= 1


@given(st.lists(paces, min_size=1, max_size=8), st.integers(1, 8), st.integers(0, 20))
def test_only_whole_portions_are_handed_out(groups: list[Pace], quantum: int, more: int) -> None:
    found = rebalance(groups, quantum * (len(groups) + more), quantum)

    assert all(count >= quantum and count % quantum == 0 for count in found.counts)


def test_the_published_objective_would_lose_a_second_of_six() -> None:
    found = rebalance([Pace(1.0), Pace(1.0), Pace(3.0)], 11)

    assert found.counts == (5, 5, 1)
    assert found.iteration_s == 5.0
    assert found.offsets == (0, 5, 10)


def test_one_slow_group_of_four_gets_less_and_all_are_done_together() -> None:
    found = rebalance([Pace(0.1), Pace(0.1), Pace(0.15), Pace(0.1)], 32)

    assert sorted(found.counts) == [6, 8, 9, 9]
    assert found.counts[2] == 6
    assert found.iteration_s == pytest.approx(0.9)


def test_gradients_weighted_by_micro_batch_are_those_of_the_whole_batch() -> None:
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(11, 5))
    shares = rebalance([Pace(1.0), Pace(1.0), Pace(3.0)], 11)
    sums = np.add.reduceat(gradients, shares.offsets)

    assert sums.sum(axis=0) / 11 == pytest.approx(gradients.mean(axis=0), rel=1e-12)


@pytest.mark.parametrize(
    ("num_groups", "num_microbatches", "quantum", "message"),
    [
        (3, 2, 1, "2 micro-batches for 3 groups; every group needs at least 1"),
        (2, 6, 4, "6 micro-batches do not divide into portions of 4"),
        (0, 6, 1, "6 micro-batches for 0 groups"),
        (2, 6, 0, "6 micro-batches do not divide into portions of 0"),
    ],
)
def test_impossible_shares_are_refused(num_groups: int, num_microbatches: int, quantum: int, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        rebalance([Pace(1.0)] * num_groups, num_microbatches, quantum)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_times_must_be_times(value: float) -> None:
    with pytest.raises(BadInput, match="microbatch_s is"):
        Pace(value)
    if value != 0:
        with pytest.raises(BadInput, match="fill_s is"):
            Pace(1.0, value)
