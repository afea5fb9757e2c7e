"""Slow links by hand: messages between clocks that differ, groups that move as much, and rings."""

from __future__ import annotations

import numpy as np
import pytest

from takeup.training.stragglers.contract import CallLog, Operation
from takeup.training.stragglers.locate.accounts import CallWindow, RankedSuspect, windows_of
from takeup.training.stragglers.locate.suspects import slow_links
from training.stragglers.calls_by_hand import Call, log_of
from training.stragglers.plain_job import Faults, cut, logs_of, tensor_and_data

ALL, GROUPS = 1, {1: (0, 1)}
CLOCKS_MS = (1e6, 7e8)


def messages(transfer_ms: float, late_ms: float, first: int, num: int = 12, asked_ms: float = 10.0) -> list[CallLog]:
    """Rank 0 sends to rank 1 in every iteration, after that has begun to wait, or before; then both reduce."""
    sender, receiver = list[Call](), list[Call]()
    for n in range(first, first + num):
        start = 200.0 * n
        sent = start + 20 + late_ms
        got = max(sent + transfer_ms, start + asked_ms + 0.1)
        sender.append(Call(sent, got + 90, n, 64, Operation.SEND, 1, ALL))  # nobody waits for it until late
        receiver.append(Call(start + asked_ms, got, n, 64, Operation.RECEIVE, 0, ALL))
        for rank in (sender, receiver):
            rank.append(Call(got + 95, got + 96, n, 8, Operation.ALL_REDUCE, -1, ALL))
    return [log_of(rank, calls, GROUPS, CLOCKS_MS[rank]) for rank, calls in enumerate((sender, receiver))]


def found_in(logs: list[CallLog], before: list[CallLog]) -> list[RankedSuspect]:
    return list(slow_links(*windows_of(logs, before)))


def test_a_message_that_takes_longer_is_a_slow_link() -> None:
    (found,) = found_in(messages(42.0, 0.0, 20), messages(2.0, 0.0, 0))

    assert found.suspect.ranks == (0, 1)
    assert found.excess_s == pytest.approx(0.040, rel=0.1)
    assert found.suspect.share_late == 0.5  # every message, no reduction
    assert found.suspect.least_s == pytest.approx(found.excess_s)


def test_messages_some_of_which_are_as_fast_as_before_did_not_cross_a_slow_link() -> None:
    """As when ranks wait for cores, and now and then one is free."""
    after = messages(42.0, 0.0, 20)
    quick = after[1].calls["operation"] == Operation.RECEIVE
    after[1].calls["ended_ns"][np.flatnonzero(quick)[7]] -= 40_000_000
    (found,) = found_in(after, messages(2.0, 0.0, 0))

    assert found.excess_s == pytest.approx(0.040, rel=0.1)
    assert found.suspect.least_s == pytest.approx(0.0, abs=1e-6)


def test_messages_from_before_it_began_do_not_hide_that_all_are_slow_since_then() -> None:
    after = messages(42.0, 0.0, 22, num=10)
    early = messages(2.0, 0.0, 20, num=2)  # it seemed to begin two iterations earlier
    both = [
        CallLog(log.rank, np.concatenate([one.calls, log.calls]), log.groups)
        for one, log in zip(early, after, strict=True)
    ]
    (found,) = found_in(both, messages(2.0, 0.0, 0))

    assert found.suspect.least_s == pytest.approx(found.excess_s) == pytest.approx(0.040, rel=0.1)


def test_a_late_sender_is_none_though_the_receiver_waits_as_long() -> None:
    assert found_in(messages(2.0, 40.0, 20), messages(2.0, 0.0, 0)) == []


def test_a_late_receiver_is_none_though_messages_lie_there_for_as_long() -> None:
    assert found_in(messages(2.0, 0.0, 20, asked_ms=62.0), messages(2.0, 0.0, 0)) == []


def test_a_link_costs_no_more_than_the_receiver_waits_for_it() -> None:
    (found,) = found_in(messages(42.0, 0.0, 20, asked_ms=47.0), messages(2.0, 0.0, 0))

    assert found.excess_s == pytest.approx(0.015, rel=0.1)  # 40 ms later, but only 15 ms after it was asked for


def test_without_a_past_nothing_is_said_of_messages() -> None:
    assert found_in(messages(42.0, 0.0, 20), []) == []


def test_groups_that_move_as_much_are_compared_if_there_are_three() -> None:
    _, after = cut(logs_of(tensor_and_data(3), 32, Faults(links={(2, 3): 9.0}), 0), 4, 32)
    _, few = cut(logs_of(tensor_and_data(2), 32, Faults(links={(2, 3): 9.0}), 0), 4, 32)

    assert [found.suspect.ranks for found in found_in(after, [])] == [(2, 3)]
    assert found_in(few, []) == []


def test_a_ring_whose_ends_do_not_tell_is_named_as_a_whole() -> None:
    before, after = (_reductions(transfer_ms, first) for transfer_ms, first in ((2.0, 0), (40.0, 20)))
    (found,) = found_in(after, before)

    assert found.suspect.ranks == (0, 1, 2, 3)
    assert str(found.suspect).startswith("a link among ranks 0, 1, 2 and 3")
    assert found.suspect.least_s == pytest.approx(found.excess_s)


def test_reductions_that_took_as_long_now_and_then_before_are_no_slow_link() -> None:
    steady, restless = (_reductions(transfer_ms, 0) for transfer_ms in (2.0, 2.0))
    for log in restless:
        log.calls["ended_ns"][::3] += 60_000_000
    after = _reductions(40.0, 20)

    assert len(found_in(after, steady)) == 1
    assert found_in(after, restless) == []


@pytest.mark.parametrize("place", range(4))
def test_ends_that_shift_name_the_link(place: int) -> None:
    shifts = np.roll([0.0, 30.0, 20.0, 10.0], place)  # the rank after the link is last, that before it first
    before, after = _reductions(2.0, 0), _reductions(40.0, 20, shifts.tolist())
    (found,) = found_in(after, before)

    assert found.suspect.ranks == tuple(sorted((place, (place + 1) % 4)))


def _reductions(transfer_ms: float, first: int, shifts: list[float] | None = None) -> list[CallLog]:
    """Four ranks that come together and end at once, or later by so much each."""
    later = shifts or [0.0] * 4
    starts = [300.0 * n for n in range(first + 1, first + 13)]
    return [
        log_of(
            rank,
            [Call(start, start + transfer_ms + later[rank], int(start // 300), group=ALL) for start in starts],
            {ALL: (0, 1, 2, 3)},
            1e7 * rank,
        )
        for rank in range(4)
    ]


def test_nothing_now_is_nothing_found() -> None:
    now, past = windows_of(messages(2.0, 0.0, 20), messages(2.0, 0.0, 0))

    assert list(slow_links(now, past)) == []
    assert isinstance(now, CallWindow)
