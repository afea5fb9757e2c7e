"""Exchanges of ranks that keep traffic off a slow link."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.training.stragglers.contract import CALL, CallLog, Operation, SlowdownEvent, Suspect
from takeup.training.stragglers.remedy.restart import PredictedRankSwap, best_rank_swap, traffic_of

RING = {(0, 1): 100, (1, 2): 100, (2, 3): 100, (0, 3): 100}


def slow(*ranks: int, kind: str = "link") -> SlowdownEvent:
    """An iteration of 20 ms that takes 60 since this is slow."""
    suspect = Suspect(kind, ranks, 5.0, 1.0, "")  # type: ignore[arg-type]
    return SlowdownEvent(60, 66, True, 3.0, 0.67, (suspect,), 0.020, 0.060)


def log_of(rank: int, groups: dict[int, tuple[int, ...]], *calls: tuple[int, int, int, int]) -> CallLog:
    """Calls of a rank: operation, peer, group, bytes."""
    rows = np.zeros(len(calls), CALL)
    for row, (operation, peer, group, size_bytes) in zip(rows, calls, strict=True):
        row["operation"], row["peer"], row["group"], row["size_bytes"] = operation, peer, group, size_bytes
    return CallLog(rank, rows, groups)


def test_messages_count_where_they_go_and_reductions_around_the_ring() -> None:
    groups: dict[int, tuple[int, ...]] = {7: (0, 1, 2)}
    logs = [
        log_of(0, groups, (Operation.ALL_REDUCE, -1, 7, 100), (Operation.SEND, 2, 7, 5)),
        log_of(1, groups, (Operation.ALL_REDUCE, -1, 7, 100)),
        log_of(2, groups, (Operation.ALL_REDUCE, -1, 7, 100), (Operation.RECEIVE, 0, 7, 5)),
    ]

    assert traffic_of(logs) == {(0, 1): 100, (1, 2): 100, (0, 2): 105}


def test_a_group_of_one_rank_sends_nothing() -> None:
    assert traffic_of([log_of(0, {7: (0,)}, (Operation.ALL_REDUCE, -1, 7, 100))]) == {}


def test_a_slow_link_of_a_ring_is_taken_out_of_it() -> None:
    found = best_rank_swap(slow(1, 2), RING, 4, 0.1)

    assert found is not None
    order = found.order(4)
    assert tuple(sorted((order[1], order[2]))) not in RING  # they are no neighbours any more
    assert found.predicted_s == pytest.approx(0.020)


def test_a_link_that_cannot_be_avoided_is_given_what_is_sent_least() -> None:
    traffic = {(0, 1): 100, (1, 2): 100, (0, 2): 10}

    found = best_rank_swap(slow(0, 1), traffic, 3, 0.1)

    assert found is not None
    assert found.predicted_s == pytest.approx(0.024)


@pytest.mark.parametrize(
    "event",
    [slow(1, 2, 3), slow(1, kind="compute"), slow(0, 2), SlowdownEvent(60, 66, True, 3.0, 0.67, (), 0.02, 0.06)],
)
def test_nothing_is_exchanged_if_the_link_is_not_known_or_carries_nothing(event: SlowdownEvent) -> None:
    assert best_rank_swap(event, RING, 4, 0.1) is None


def test_nothing_is_exchanged_for_too_little() -> None:
    every = dict.fromkeys(combinations(range(4), 2), 100)

    assert best_rank_swap(slow(1, 2), every, 4, 0.1) is None
    assert best_rank_swap(slow(1, 2), {**every, (0, 3): 90}, 4, 0.1) is None
    assert best_rank_swap(slow(1, 2), {**every, (0, 3): 90}, 4, 0.05) is None  # one exchange cannot bring them there
    assert best_rank_swap(slow(1, 2), {**every, (0, 2): 90}, 4, 0.05) is not None


def test_an_order_exchanges_two_ranks_and_twice_is_none() -> None:
    order = PredictedRankSwap((1, 3), 0.02).order(5)

    assert order == (0, 3, 2, 1, 4)
    assert tuple(order[rank] for rank in order) == (0, 1, 2, 3, 4)


@given(st.data())
def test_no_other_exchange_is_foretold_to_be_better(data: st.DataObject) -> None:
    number = data.draw(st.integers(3, 6))
    pairs = list(combinations(range(number), 2))
    traffic = {pair: data.draw(st.integers(1, 9)) for pair in pairs}
    ends = data.draw(st.sampled_from(pairs))

    found = best_rank_swap(slow(*ends), traffic, number, 0.0)

    carried = []
    for one, other in pairs:
        names = {one: other, other: one}
        carried.append(traffic[tuple(sorted(names.get(rank, rank) for rank in ends))])  # type: ignore[index]
    least = min(1.0, min(carried) / traffic[ends])
    assert found is not None
    assert found.predicted_s == pytest.approx(0.020 + 0.040 * least)
