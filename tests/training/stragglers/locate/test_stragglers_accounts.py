"""Where the time of ranks goes: by hand, and with calls during which a rank works on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from support.slow_report import medians_of
from takeup.training.stragglers.contract import CallLog
from takeup.training.stragglers.locate.accounts import (
    RankTimeline,
    TimeAccount,
    overlapped_pairs,
    windows_of,
)
from takeup.training.stragglers.locate.matching import MatchedCalls
from training.stragglers.calls_by_hand import GROUP, Call, blocking, log_of
from training.stragglers.plain_job import Faults, data_parallel, logs_of

PAIR = {GROUP: (0, 1)}
ANCHOR = (1, 1000, GROUP, -1)


def own_seconds(logs: Sequence[CallLog]) -> dict[int, float]:
    """By rank: the median time per iteration of its own work."""
    return {rank: account.own_s for rank, account in windows_of(logs, ())[0].accounts.items()}


def accounts_of(*ranks: list[Call]) -> list[TimeAccount]:
    calls = MatchedCalls.of([log_of(rank, each, PAIR, 1e6 * rank) for rank, each in enumerate(ranks)])
    found = [RankTimeline(calls, place).account(ANCHOR, frozenset()) for place in range(len(ranks))]
    return [account for account in found if account is not None]


def test_own_work_waiting_and_transfer_add_up_to_the_iteration() -> None:
    fast, slow = accounts_of(blocking([40], 60, 5, 10), blocking([60], 40, 5, 10))

    assert medians_of(fast) == pytest.approx((0.065, 0.040, 0.020, 0.005))
    assert medians_of(slow) == pytest.approx((0.065, 0.060, 0.0, 0.005))


def test_the_slow_rank_has_the_shortest_calls() -> None:
    fast, slow = accounts_of(blocking([40], 60, 5, 10), blocking([60], 40, 5, 10))

    assert slow.waits_s.max() < fast.waits_s.min()
    assert slow.own_s > fast.own_s


def test_every_iteration_has_its_own_account() -> None:
    fast, _ = accounts_of(blocking([40, 50], 60, 5, 10), blocking([60], 60, 5, 10))

    assert len(fast.owns_s) == 9
    assert sorted({round(1e3 * each) for each in fast.owns_s}) == [40, 50]
    assert fast.numbers.tolist() == list(range(9))


def test_no_whole_iteration_is_no_account() -> None:
    assert accounts_of([Call(0, 5, 0)], [Call(0, 5, 0)]) == []


def test_an_unknown_end_counts_as_work() -> None:
    calls = [Call(20.0 * n + 10, 0, n) for n in range(6)]
    (account, _) = accounts_of(calls, calls)

    assert medians_of(account) == pytest.approx((0.020, 0.020, 0.0, 0.0))


def test_what_is_worked_through_is_told_from_what_is_waited_for() -> None:
    overlapping, waiting = (logs_of(data_parallel(4, overlap=each), 30, Faults(), 0) for each in (True, False))
    found, none = (
        overlapped_pairs([RankTimeline(calls, place) for place in range(4)])
        for calls in (MatchedCalls.of(overlapping), MatchedCalls.of(waiting))
    )
    buckets = {((1, 3_000_000), (1, 2_000_000)), ((1, 2_000_000), (1, 2_000_000))}

    assert buckets <= found
    assert not buckets & none


def test_own_work_is_the_same_whether_calls_overlap_or_not() -> None:
    for overlap in (True, False):
        own_s = own_seconds(logs_of(data_parallel(4, overlap=overlap), 40, Faults(ranks={1: 1.5}), 0, noise=0.01))

        assert own_s[0] == pytest.approx(0.095, rel=0.03)
        assert own_s[1] == pytest.approx(0.1425, rel=0.03)


# Ends that are noted late ---------------------------------------------------------------------------------------------


def agreeing(own_ms: float, others_ms: float, num: int, late_ms: float, first: int = 0) -> list[Call]:
    """Iterations that reduce, for which the rank waits, and then agree, at once; every third end is noted so late."""
    calls, now = list[Call](), 1000.0 * first
    for number in range(first, first + num):
        began, ended = now + own_ms, now + max(own_ms, others_ms) + 1
        agreed = ended + 0.5
        calls.append(Call(began, agreed + late_ms if number % 3 == 0 else ended, 2 * number))
        calls.append(Call(agreed, agreed + 0.4, 2 * number + 1, size=8))
        now = agreed + 0.4
    return calls


@pytest.mark.parametrize("late_ms", [0.1, 0.3, 0.9])
def test_an_end_that_is_noted_after_the_next_call_has_begun_was_before_it(late_ms: float) -> None:
    fast, slow = accounts_of(agreeing(40, 90, 12, late_ms), agreeing(90, 40, 12, late_ms))

    assert fast.owns_s == pytest.approx(np.full(11, 0.0405), abs=0.0006)
    assert fast.waits_s == pytest.approx(np.full(11, 0.050), abs=0.001)
    assert slow.owns_s == pytest.approx(np.full(11, 0.0905), abs=0.0006)


def test_a_call_that_ends_long_after_the_next_has_begun_was_not_waited_for() -> None:
    (account, _) = accounts_of(*[agreeing(40, 90, 12, 30)] * 2)

    assert account.owns_s[::3] == pytest.approx(np.full(4, 0.0515 + 0.0400 - 0.0296))  # until then, and after its end


def test_ranks_that_wait_longer_after_a_change_did_not_work_meanwhile() -> None:
    """Though in either window waits vary less than the moments at which their ends are noted."""
    before = [log_of(rank, agreeing(40, 40, 12, 0.5), PAIR) for rank in (0, 1)]
    after = [log_of(rank, agreeing(own, 130 - own, 12, 0.5, first=12), PAIR) for rank, own in enumerate((40, 90))]
    alone = overlapped_pairs([RankTimeline(MatchedCalls.of(after), place) for place in (0, 1)])
    now, past = windows_of(after, before)

    assert alone == {((1, 1000), (1, 8))}
    assert [account.own_s for account in past.accounts.values()] == pytest.approx([0.0405] * 2, abs=0.0006)
    assert [account.own_s for account in now.accounts.values()] == pytest.approx([0.0405, 0.0905], abs=0.0006)


# Windows --------------------------------------------------------------------------------------------------------------


def test_windows_are_cut_by_the_same_call() -> None:
    logs = logs_of(data_parallel(3), 40, Faults(), 0)
    before = [type(log)(log.rank, log.calls[:100], log.groups) for log in logs]
    after = [type(log)(log.rank, log.calls[100:], log.groups) for log in logs]
    now, past = windows_of(after, before)

    assert set(now.accounts) == set(past.accounts) == {0, 1, 2}
    assert now.iteration_s == pytest.approx(past.iteration_s, rel=0.1)
    assert now.num_iterations + past.num_iterations >= 37


def test_an_empty_window_has_no_accounts() -> None:
    now, past = windows_of([], [])

    assert (now.calls, past.calls) == (None, None)
    assert (len(now.accounts), len(past.accounts)) == (0, 0)
    assert own_seconds([]) == {}


def test_numbers_need_not_begin_at_zero() -> None:
    logs = logs_of(data_parallel(3), 40, Faults(ranks={2: 1.4}), 0)
    for log in logs:
        log.calls["number"] += 10**12
    own_s = own_seconds(logs)

    assert np.argmax([own_s[rank] for rank in range(3)]) == 2
