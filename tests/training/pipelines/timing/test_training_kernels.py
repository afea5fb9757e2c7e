"""Kernels that call no others, run as plain Python: wires and channels, lanes behind sends, moves of the search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.timing import replay as traffic
from takeup.training.pipelines.timing import search as searching
from takeup.training.pipelines.timing.evaluation import pipeline_arrays
from takeup.training.pipelines.timing.replay import NO_WIRE, PipelineArrays, Wires
from takeup.training.pipelines.timing.search import OrderLimits

MS = 1_000_000


def plain(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The Python function behind a kernel."""
    function: Callable[..., Any] = compiled.py_func  # type: ignore[attr-defined]
    return function


SEND, LANE, PASSES = (plain(each) for each in (traffic.send, traffic.lane_free_at, traffic.passes_on))
MOVE = plain(searching._move)


def pair(link: Link, max_sends: int | None = None) -> tuple[PipelineArrays, Wires]:
    """Two stages, four micro-batches, and wires that are free."""
    stage = Stage(0.01, 0.01, 0.01)
    course = pipeline_arrays(Profile((stage, stage), (link,), 4, max_sends=max_sends))
    return course, plain(traffic.free_wires)(course)


# Messages


def test_messages_over_one_channel_wait_for_each_other() -> None:
    course, wires = pair(Link(0.005, 0.020))

    arrivals = [SEND(course, wires, 0, 0, number, number * 10 * MS) // MS for number in range(4)]

    assert arrivals == [25, 45, 65, 85]


def test_messages_over_two_channels_take_the_one_that_is_free_first() -> None:
    course, wires = pair(Link(0.005, 0.020, num_channels=2))

    arrivals = [SEND(course, wires, 0, 0, number, number * 10 * MS) // MS for number in range(4)]

    assert arrivals == [25, 35, 45, 55]


def test_directions_do_not_disturb_each_other() -> None:
    course, wires = pair(Link(0.0, 0.020))

    assert SEND(course, wires, 0, 0, 0, 0) == SEND(course, wires, 1, 0, 0, 0) == 20 * MS


@settings(max_examples=40)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=4), st.integers(0, 20), st.integers(0, 20), st.integers(1, 3))
def test_a_link_is_a_queue_with_servers(gaps: list[int], latency: int, service: int, num_channels: int) -> None:
    course, wires = pair(Link(latency / 1e3, service / 1e3, num_channels))
    handed = np.cumsum(gaps).tolist()

    arrivals = [SEND(course, wires, 0, 0, number, moment * MS) // MS for number, moment in enumerate(handed)]

    ends: list[int] = []
    for number, moment in enumerate(handed):
        before = ends[number - num_channels] if number >= num_channels else 0
        ends.append(max(moment, before) + service)
    assert arrivals == [end + latency for end in ends]


def test_forwards_go_up_and_gradients_go_down() -> None:
    course, _ = pair(Link())

    assert PASSES(course, 0, 0) == (1, 0)
    assert PASSES(course, 1, 1) == PASSES(course, 1, 3) == (0, 1)
    assert PASSES(course, 1, 0) == PASSES(course, 0, 1) == PASSES(course, 0, 2) == (-1, NO_WIRE)


# Lanes


def test_a_lane_is_free_at_once_where_compute_never_waits() -> None:
    course, wires = pair(Link())

    assert LANE(course, wires, 0, 10, 500) == 10


def test_with_one_send_allowed_a_lane_waits_until_it_has_arrived() -> None:
    course, wires = pair(Link(), max_sends=1)

    assert LANE(course, wires, 0, 10, 500) == 500
    assert LANE(course, wires, 0, 510, 0) == 510


def test_with_two_sends_allowed_a_lane_waits_for_the_first_to_arrive() -> None:
    course, wires = pair(Link(), max_sends=2)

    assert LANE(course, wires, 0, 10, 500) == 10
    assert LANE(course, wires, 0, 20, 300) == 300
    assert LANE(course, wires, 0, 310, 700) == 500
    assert LANE(course, wires, 0, 800, 0) == 800


def test_lanes_of_other_ranks_are_not_held_up() -> None:
    course, wires = pair(Link(), max_sends=1)
    LANE(course, wires, 0, 10, 500)

    assert LANE(course, wires, 1, 20, 0) == 20


# Moves of the search


def limits(warmup: list[int], flights: list[int], caps: list[int]) -> OrderLimits:
    return OrderLimits(*(np.array(values, np.int64) for values in (warmup, flights, caps)))


def moved(given_limits: OrderLimits, stage: int, kind: int) -> tuple[list[int], list[int]] | None:
    """Warm-ups and flights after a move; None if it is not valid."""
    num = given_limits.warmup.size
    course = pipeline_arrays(Profile.uniform(num, 9, 0.01))
    trial = limits([0] * num, [0] * num, given_limits.caps.tolist())
    valid = MOVE(course, given_limits, stage, kind, trial)
    return (trial.warmup.tolist(), trial.flights.tolist()) if valid else None


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (0, ([6, 4, 1], [9, 9, 9])),
        (1, ([4, 2, 1], [9, 9, 9])),
        (2, ([5, 4, 1], [9, 9, 9])),
        (3, ([5, 2, 1], [9, 9, 9])),
        (4, ([5, 3, 1], [9, 6, 9])),
        (5, None),
        (6, ([5, 3, 1], [9, 8, 9])),
    ],
)
def test_moves_of_the_middle_stage(kind: int, expected: tuple[list[int], list[int]] | None) -> None:
    assert moved(limits([5, 3, 1], [9, 9, 9], [9, 9, 9]), 1, kind) == expected


@pytest.mark.parametrize(
    ("given_limits", "stage", "kind"),
    [
        (limits([3, 3, 1], [9, 9, 9], [9, 9, 9]), 1, 2),  # would grow along the pipeline
        (limits([3, 2, 1], [9, 9, 9], [9, 9, 9]), 2, 3),  # no warm-up at all
        (limits([3, 2, 1], [3, 9, 9], [9, 9, 9]), 0, 2),  # no more may be under way
        (limits([3, 2, 1], [9, 9, 9], [3, 9, 9]), 0, 2),  # no memory for more
        (limits([3, 2, 1], [9, 2, 9], [9, 9, 9]), 1, 6),  # fewer under way than the warm-up
    ],
)
def test_moves_that_break_a_limit_are_not_made(given_limits: OrderLimits, stage: int, kind: int) -> None:
    assert moved(given_limits, stage, kind) is None


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_every_valid_move_keeps_warm_ups_in_order_and_within_limits(data: st.DataObject) -> None:
    warmup = sorted((data.draw(st.integers(1, 9)) for _ in range(4)), reverse=True)
    flights = [data.draw(st.integers(each, 9)) for each in warmup]
    caps = [data.draw(st.integers(each, 9)) for each in warmup]

    found = moved(limits(warmup, flights, caps), data.draw(st.integers(0, 3)), data.draw(st.integers(0, 6)))

    if found is not None:
        assert found != (warmup, flights)
        assert found[0] == sorted(found[0], reverse=True)
        assert all(1 <= w <= min(f, c) for w, f, c in zip(*found, caps, strict=True))
