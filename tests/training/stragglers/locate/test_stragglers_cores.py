"""Slowdowns that are explained by cores that do other work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from takeup.training.stragglers.contract import SlowdownEvent, Suspect
from takeup.training.stragglers.locate.suspects import blame_cpu_contention

LINK = Suspect("link", (0, 1, 2, 3), 4.2, 1.0, "transfer")
EVENT = SlowdownEvent(60, 66, True, 2.0, 0.5, (LINK,), 0.020, 0.040)


def test_if_most_ranks_wait_for_cores_for_much_of_the_loss_nobody_else_is_blamed() -> None:
    found = blame_cpu_contention(EVENT, {0: 0.015, 1: 0.011, 2: 0.001, 3: 0.03})

    (suspect,) = found.suspects
    assert (suspect.kind, suspect.ranks) == ("host", (0, 1, 2, 3))
    assert "57 ms more in an iteration, all ranks together; it lost 20 ms" in suspect.reason
    assert replace(found, suspects=EVENT.suspects) == EVENT


@pytest.mark.parametrize("more_s", [{}, {0: 0.0, 1: 0.002}, {0: -0.05, 1: 0.009}, {0: 0.0, 1: 0.019, 2: 0.0}])
def test_a_little_waiting_for_cores_or_that_of_one_rank_explains_nothing(more_s: dict[int, float]) -> None:
    assert blame_cpu_contention(EVENT, more_s) is EVENT


def test_a_link_is_not_slow_if_its_ranks_together_waited_for_cores_for_all_that_was_lost() -> None:
    waits_s = {0: 0.009, 1: 0.006, 2: -0.001, 3: 0.007}  # the median is too little

    assert blame_cpu_contention(EVENT, waits_s).suspects[0].ranks == (0, 1, 3)
    assert blame_cpu_contention(EVENT, waits_s | {3: 0.005}) is EVENT


def test_what_ranks_far_from_a_slow_link_waited_does_not_excuse_it() -> None:
    pair = replace(EVENT, suspects=(replace(LINK, ranks=(0, 1)),))
    waits_s = {0: 0.001, 1: 0.001, 2: 0.009, 3: 0.009}

    assert blame_cpu_contention(pair, waits_s) is pair
    assert blame_cpu_contention(pair, {0: 0.012, 1: 0.009, 2: 0.0, 3: 0.0}).suspects[0].kind == "host"


def test_a_link_is_slow_if_messages_take_longer_by_more_than_ranks_there_waited() -> None:
    waits_s = dict.fromkeys(range(4), 0.011)
    slow, innocent = (replace(EVENT, suspects=(replace(LINK, excess_s=excess_s),)) for excess_s in (0.050, 0.040))

    assert blame_cpu_contention(slow, waits_s) is slow
    assert blame_cpu_contention(innocent, waits_s).suspects[0].kind == "host"


def test_a_link_that_delays_even_the_fastest_messages_is_slow_however_busy_cores_are() -> None:
    waits_s = dict.fromkeys(range(4), 0.011)
    slow, innocent = (
        replace(EVENT, suspects=(replace(LINK, excess_s=0.040, least_s=least_s),)) for least_s in (0.021, 0.019)
    )

    assert blame_cpu_contention(slow, waits_s) is slow
    assert blame_cpu_contention(innocent, waits_s).suspects[0].kind == "host"


def test_a_thin_cable_is_named_though_its_ranks_waited_for_cores_for_longer() -> None:
    """Times, excess and waits are of a run: 64 KiB over 30 Mbit/s beside two programs that take the cores."""
    cable = Suspect("link", (0, 1), 13.2, 1.0, "413 ms of transfer instead of 31 ms", 0.382, 0.382)
    event = SlowdownEvent(20, 36, True, 1.44, 0.3, (cable,), 0.372, 0.535)

    assert blame_cpu_contention(event, {0: 0.3144, 1: 0.3767, 2: 0.3168}) is event


def test_a_rank_is_slow_if_it_computes_for_longer_by_much_more_than_it_waited() -> None:
    rank = Suspect("compute", (2,), 2.0, 1.0, "own work")
    waits_s = dict.fromkeys(range(4), 0.011)
    slow, innocent = (replace(EVENT, suspects=(replace(rank, excess_s=excess_s),)) for excess_s in (0.024, 0.020))

    assert blame_cpu_contention(slow, waits_s) is slow
    assert blame_cpu_contention(innocent, waits_s).suspects[0].kind == "host"


def test_a_rank_that_alone_waits_for_a_core_is_told_to_wait_and_not_to_be_slow() -> None:
    alone = replace(EVENT, suspects=(Suspect("compute", (2,), 2.0, 1.0, "own work", 0.020),))
    waits_s = {0: 0.0, 1: -0.002, 2: 0.011, 3: 0.001}

    (suspect,) = blame_cpu_contention(alone, waits_s).suspects
    assert (suspect.kind, suspect.ranks) == ("host", (2, 3))
    assert blame_cpu_contention(alone, waits_s | {2: 0.009}) is alone
    assert blame_cpu_contention(alone, {0: 0.011, 1: 0.0, 2: 0.0, 3: 0.0}) is alone  # another one waits


def test_two_ranks_that_wait_for_cores_explain_each_their_own_part_of_the_loss() -> None:
    ranks = tuple(
        Suspect("compute", (rank,), 1.3, 1.0, "own work", more_s) for rank, more_s in ((2, 0.012), (1, 0.009))
    )
    both = replace(EVENT, suspects=ranks)
    waits_s = {0: 0.0, 1: 0.007, 2: 0.012, 3: 0.001}  # rank 1 alone not by half of all that was lost

    assert blame_cpu_contention(both, waits_s).suspects[0].kind == "host"
    assert blame_cpu_contention(both, waits_s | {1: 0.004}) is both


def test_a_slow_rank_beside_a_slow_link_is_blamed_unless_most_ranks_waited() -> None:
    both = replace(EVENT, suspects=(Suspect("compute", (2,), 2.0, 1.0, "own work"), LINK))

    assert blame_cpu_contention(both, {0: 0.009, 1: 0.009, 2: 0.009, 3: 0.0}) is both
    assert blame_cpu_contention(both, dict.fromkeys(range(4), 0.011)).suspects[0].kind == "host"


def test_where_nobody_is_to_blame_it_is_enough_if_ranks_together_waited() -> None:
    nobody = replace(EVENT, suspects=())
    waits_s = dict.fromkeys(range(4), 0.003)

    assert blame_cpu_contention(nobody, waits_s).suspects[0].kind == "host"
    assert blame_cpu_contention(EVENT, waits_s) is EVENT
    assert blame_cpu_contention(nobody, dict.fromkeys(range(4), 0.002)) is nobody


def test_recovery_needs_no_explanation() -> None:
    relief = replace(EVENT, is_slow=False, before_s=0.04, after_s=0.02)

    assert blame_cpu_contention(relief, {0: 0.5}) is relief


@pytest.mark.parametrize(
    ("ranks", "words"),
    [((2,), "rank 2 waits for cores that do other work"), ((0, 1), "ranks 0 and 1 wait for cores that do other work")],
)
def test_the_sentence_says_who_waits(ranks: tuple[int, ...], words: str) -> None:
    assert str(Suspect("host", ranks, 2.0, 0.0, "")) == words
