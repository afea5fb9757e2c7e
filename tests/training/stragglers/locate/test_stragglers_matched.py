"""Calls of ranks matched: transfers, what is missing, kinds, and the call that marks iterations."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.training.stragglers.contract import CALL, Operation
from takeup.training.stragglers.locate.matching import MatchedCalls, agreed_anchors, anchor_of, tokens_of
from training.stragglers.calls_by_hand import GROUP, Call, log_of
from training.stragglers.plain_job import Faults, data_parallel, logs_of, two_by_two

PAIR = {GROUP: (0, 1)}


def test_the_shortest_duration_is_the_transfer() -> None:
    calls = MatchedCalls.of([log_of(0, [Call(0, 30, 0)], PAIR), log_of(1, [Call(25, 30, 0)], PAIR, clock_ms=5e8)])

    assert calls.transfer_s.tolist() == pytest.approx([0.005])
    assert calls.lasts_s.tolist() == pytest.approx([0.030, 0.005])


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_clocks_do_not_matter(one_ms: float, other_ms: float) -> None:
    logs = [log_of(0, [Call(1, 31, 0)], PAIR, one_ms), log_of(1, [Call(25, 31, 0)], PAIR, other_ms)]

    assert MatchedCalls.of(logs).transfer_s[0] == pytest.approx(0.006, abs=1e-5)


def test_an_end_that_should_have_been_seen_makes_the_transfer_unknown() -> None:
    calls = MatchedCalls.of([log_of(0, [Call(0, 30, 0)], PAIR), log_of(1, [Call(25, 0, 0)], PAIR)])

    assert np.isnan(calls.transfer_s).all()


def test_a_rank_without_a_log_is_not_missed_if_two_others_have_one() -> None:
    three = {GROUP: (0, 1, 2)}
    calls = MatchedCalls.of([log_of(0, [Call(0, 30, 0)], three), log_of(1, [Call(20, 30, 0)], three)])

    assert calls.transfer_s.tolist() == pytest.approx([0.010])


def test_one_rank_alone_tells_nothing_of_a_transfer() -> None:
    assert np.isnan(MatchedCalls.of([log_of(0, [Call(0, 30, 0)], PAIR)]).transfer_s).all()


def test_a_group_of_one_has_transfers() -> None:
    assert MatchedCalls.of([log_of(0, [Call(1, 3, 0)], {GROUP: (0,)})]).transfer_s.tolist() == pytest.approx([0.002])


def test_numbers_of_different_groups_are_different_calls() -> None:
    groups = {1: (0, 1), 2: (0, 1)}
    rows = [Call(0, 10, 0, group=1), Call(20, 24, 0, group=2)]
    calls = MatchedCalls.of([log_of(0, rows, groups), log_of(1, rows, groups)])

    assert calls.num_instances == 2
    assert sorted(calls.transfer_s.tolist()) == pytest.approx([0.004, 0.010])


def test_a_message_is_matched_with_its_receipt_and_directions_are_apart() -> None:
    sends = [Call(0, 1, 0, operation=Operation.SEND, peer=1), Call(5, 9, 0, operation=Operation.RECEIVE, peer=1)]
    gets = [Call(0, 2, 0, operation=Operation.RECEIVE, peer=0), Call(4, 9, 0, operation=Operation.SEND, peer=0)]
    calls = MatchedCalls.of([log_of(0, sends, PAIR), log_of(1, gets, PAIR)])

    assert calls.num_instances == 2
    assert set(calls.members) == {(0, 1), (1, 0)}
    assert calls.instance.tolist() == [calls.instance[2], calls.instance[3], calls.instance[2], calls.instance[3]]


def test_an_end_before_the_beginning_is_no_end() -> None:
    assert not MatchedCalls.of([log_of(0, [Call(20, 10, 0)], PAIR)]).has_ended.any()


# Anchors --------------------------------------------------------------------------------------------------------------


def test_ranks_agree_on_an_anchor() -> None:
    logs = logs_of(data_parallel(4), 40, Faults(), 0)
    cut = {log.rank: log.calls[: 100 + 37 * log.rank] for log in logs}
    anchors = agreed_anchors(cut)

    assert len(set(anchors.values())) == 1
    assert set(anchors) == {0, 1, 2, 3}


def test_every_stage_has_an_anchor_of_its_own_group_or_of_all() -> None:
    anchors = agreed_anchors({log.rank: log.calls for log in logs_of(two_by_two(), 20, Faults(), 0)})

    assert all(peer == -1 for _, _, _, peer in anchors.values())


def test_who_has_no_anchor_is_left_out() -> None:
    logs = logs_of(data_parallel(2), 40, Faults(), 0)

    assert set(agreed_anchors({0: logs[0].calls, 1: logs[1].calls[:3]})) == {0}
    assert agreed_anchors({}) == {}


def test_messages_mark_iterations_only_where_nothing_else_does_for_long() -> None:
    rows = np.zeros(6000, CALL)
    rows["operation"], rows["peer"] = Operation.SEND, 1

    assert anchor_of(rows[:4000]) is None
    assert anchor_of(rows) == (Operation.SEND, 0, 0, 1)
    assert anchor_of(rows[:0]) is None


def test_tokens_have_no_times() -> None:
    log = log_of(0, [Call(0, 1, 0), Call(5, 9, 1)], PAIR)
    first, second = tokens_of(log.calls).tolist()

    assert first == second == [Operation.ALL_REDUCE, 1000, GROUP, -1]
