"""What is remembered of a rank: iterations counted on, calls of some of them, and forgetting."""

from __future__ import annotations

import numpy as np
import pytest

from takeup.training.stragglers.contract import CallLog
from takeup.training.stragglers.detect.detector import RankCalls
from training.stragglers.calls_by_hand import GROUP, Call, log_of

PAIR = {GROUP: (0, 1)}
ANCHOR = (1, 1000, GROUP, -1)
STEP_MS = 50.0


def part(first: int, end: int) -> CallLog:
    """Iterations of two calls, the second of which is the anchor."""
    calls = [
        call
        for n in range(first, end)
        for call in (Call(STEP_MS * n, STEP_MS * n + 1, 2 * n, 8), Call(STEP_MS * n + 20, STEP_MS * n + 25, 2 * n + 1))
    ]
    return log_of(0, calls, PAIR)


@pytest.fixture
def heard() -> RankCalls:
    found = RankCalls()
    found.append(part(0, 10))
    found.follow(ANCHOR, since=5)
    return found


def test_iterations_are_counted_from_the_number_that_all_have(heard: RankCalls) -> None:
    assert heard.num_iterations == 7  # anchors have numbers 1, 3, 5 ...; the one with number 5 is the first
    assert heard.iteration_s(0) == pytest.approx(STEP_MS / 1e3)


def test_more_calls_are_more_iterations(heard: RankCalls) -> None:
    heard.append(part(10, 14))

    assert heard.num_iterations == 11


def test_calls_of_iterations_begin_and_end_with_the_anchor(heard: RankCalls) -> None:
    rows = heard.calls(2, 4)

    assert rows["number"].tolist() == [9, 10, 11, 12, 13]
    assert heard.log(0, 2, 4).calls.tolist() == rows.tolist()


def test_what_is_forgotten_keeps_its_numbers(heard: RankCalls) -> None:
    rows = heard.calls(4, 6).tolist()
    heard.forget(3)

    assert heard.num_iterations == 7
    assert heard.num_dropped == 3
    assert heard.calls(4, 6).tolist() == rows
    assert heard.calls(0, 3).tolist() == heard.rows[:1].tolist()


def test_forgetting_what_is_to_come_keeps_the_last(heard: RankCalls) -> None:
    heard.forget(1000)

    assert len(heard.marks) == 1
    assert heard.num_iterations == 7


def test_an_anchor_that_does_not_come_any_more_is_lost(heard: RankCalls) -> None:
    assert not heard.is_lost
    heard.append(log_of(0, [Call(STEP_MS * 20 + n, STEP_MS * 20 + n + 0.5, n, 77) for n in range(40)], PAIR))

    assert heard.is_lost
    heard.start_over()
    assert (heard.anchor, heard.num_iterations, len(heard.rows)) == (None, 0, 0)


def test_nothing_heard_is_nothing_lost() -> None:
    empty = RankCalls()

    assert not empty.is_lost
    assert empty.num_iterations == 0
    assert len(empty.calls(0, 5)) == 0
    assert np.array_equal(empty.marks, [])
