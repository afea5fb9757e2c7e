"""The guide ranks by what was announced, forgets what is over, and keeps no count of what is gone."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.caching.engines.dask.spill_guide import BLOCKED_STEPS, ConsumerUpdate, SpillGuide, SpillOptions
from takeup.caching.policies import find_policy

MB = 1_000_000


def guide_of(policy: str, **options: float) -> SpillGuide:
    return SpillGuide(find_policy(policy), 100 * MB, SpillOptions(**options))  # type: ignore[arg-type]


def hear(guide: SpillGuide, *news: ConsumerUpdate, num_graphs: int = 1) -> None:
    guide.apply_message(news, [], 2, num_graphs)


def store(guide: SpillGuide, *keys: Hashable, size_bytes: float = 10 * MB) -> None:
    for key in keys:
        guide.stored(key, size_bytes, is_new=True)
    hear(guide)


def victims(guide: SpillGuide) -> Iterator[Hashable]:
    """Everything in memory, in the order in which it would leave."""
    while (key := guide.order.victim()) is not None:
        yield key
        guide.evicted(key)


READS: list[ConsumerUpdate] = [
    ("first", 1.0, 1.0, ("a",)),
    ("second", 2.0, 2.0, ("b",)),
    ("third", 3.0, 2.0, ("a",)),
    ("fourth", 4.0, 2.0, ("c",)),
    ("fifth", 5.0, 3.0, ("a",)),
]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("lru", "abcd"),  # in the order in which they came
        ("lrc", "dbca"),  # 0, 1, 1, 3 readers
        ("furthest_next_use", "dcba"),  # never, 4, 2, 1
        ("mrd", "dbca"),  # never, stage 2, stage 2, stage 1
        ("dag", "dcba"),
    ],
)
def test_the_same_announcements_give_each_policy_its_own_order(policy: str, expected: str) -> None:
    guide = guide_of(policy)
    hear(guide, *READS)
    store(guide, *"abcd")

    assert "".join(map(str, victims(guide))) == expected


def test_lerc_drops_the_peer_of_a_lost_block_first() -> None:
    guide = guide_of("lerc")
    hear(guide, ("x", 1.0, 0.0, ("a", "b")), ("y", 2.0, 0.0, ("c", "d")))
    store(guide, *"abc")
    guide.moved("d", is_lost=True)

    assert guide.order.victim() == "c"
    guide.moved("d", is_lost=False)
    assert guide.order.victim() != "c"


def test_a_consumer_that_is_over_counts_no_more() -> None:
    guide = guide_of("furthest_next_use")
    hear(guide, *READS)
    store(guide, *"abc")
    hear(guide, ("first",), ("third",), ("fifth",))

    assert guide.order.victim() == "a"


def test_a_finished_task_closes_its_own_group_at_once() -> None:
    guide = guide_of("lrc")
    hear(guide, ("t", 1.0, 0.0, ("a",)), ("u", 2.0, 0.0, ("b",)), ("v", 3.0, 0.0, ("b",)))
    store(guide, "a", "b")
    guide.started("t", ["a"])

    assert guide.order.victim() == "b"
    guide.finished("t")
    assert guide.table.rc("a") == 0


def test_a_value_whose_last_reader_is_done_is_not_evicted_before_the_scheduler_has_spoken() -> None:
    guide = guide_of("dag")
    hear(guide, ("t", 1.0, 0.0, ("a",)), ("u", 2.0, 0.0, ("b",)))
    store(guide, "a", "b")
    guide.started("t", ["a"])
    guide.finished("t")

    assert (guide.order.victim(), guide.pending_frees.total_bytes) == ("b", 10 * MB)
    hear(guide, ("t",))
    assert (guide.order.victim(), guide.pending_frees.total_bytes) == ("a", 0)


def test_a_value_about_to_be_freed_that_finds_a_new_reader_stays() -> None:
    guide = guide_of("dag")
    hear(guide, ("t", 1.0, 0.0, ("a",)), ("u", 2.0, 0.0, ("b",)))
    store(guide, "a", "b")
    guide.started("t", ["a"])
    guide.finished("t")
    hear(guide, ("furthest_next_use", 9.0, 0.0, ("a",)))

    assert (guide.order.victim(), guide.pending_frees.total_bytes) == ("a", 0)


def test_an_input_of_a_task_that_nobody_announced_may_stay_for_ever_and_counts() -> None:
    guide = guide_of("dag")
    store(guide, "a")
    guide.started("t", ["a"])
    guide.finished("t")

    assert (guide.order.victim(), len(guide.pending_frees)) == ("a", 0)


def test_values_that_others_will_read_and_those_under_recency_are_not_about_to_be_freed() -> None:
    shared, by_recency = guide_of("dag"), guide_of("lru")
    hear(shared, ("t", 1.0, 0.0, ("a",)), ("u", 2.0, 0.0, ("a",)))
    for guide in (shared, by_recency):
        store(guide, "a")
        guide.started("t", ["a"])
        guide.finished("t")

    assert len(shared.pending_frees) == len(by_recency.pending_frees) == 0


def test_a_task_that_fails_releases_its_inputs_and_stays_announced() -> None:
    guide = guide_of("lrc")
    hear(guide, ("t", 1.0, 0.0, ("a",)))
    store(guide, "a")
    guide.started("t", ["a"])
    guide.ended("t")

    assert guide.now().num_pinned == 0
    assert guide.table.rc("a") == 1


def test_inputs_of_a_task_that_waits_for_others_may_leave() -> None:
    guide = guide_of("furthest_next_use")
    hear(guide, ("t", 1.0, 1.0, ("a",)), ("u", 2.0, 1.0, ("b",)))
    store(guide, "a", "b")
    guide.started("t", ["a"])

    guide.seceded("t")

    assert guide.order.victim() == "a"


def test_a_task_started_twice_pins_its_inputs_once() -> None:
    guide = guide_of("lrc")
    guide.started("t", ["a"])
    guide.started("t", ["a"])
    guide.ended("t")

    assert guide.now().num_pinned == 0


def test_a_block_fetched_by_the_worker_that_runs_its_reader_is_needed_here_no_more() -> None:
    guide = guide_of("furthest_next_use")
    hear(guide, ("near", 1.0, 0.0, ("a",)), ("far", 2.0, 0.0, ("b",)))
    store(guide, "a", "b")
    hear(guide, ("near", True))

    assert guide.order.victim() == "b"
    guide.read("a")
    assert guide.order.victim() == "a"
    assert (guide.now().num_open_consumers, guide._fetched_by) == (1, {})


def test_a_block_that_a_running_task_reads_here_is_not_taken_for_fetched() -> None:
    guide = guide_of("furthest_next_use")
    hear(guide, ("elsewhere", 1.0, 0.0, ("a",)), ("here", 2.0, 0.0, ("a",)))
    store(guide, "a")
    hear(guide, ("elsewhere", True))
    guide.started("here", ["a"])
    guide.read("a")

    assert guide.table.rc("a") == 2
    guide.finished("here")
    hear(guide, ("elsewhere",))
    assert guide.now().num_open_consumers == 0
    guide.deleted("a")
    assert guide._fetched_by == {}


def test_a_consumer_that_cannot_run_yet_counts_as_later_than_those_that_can() -> None:
    guide = guide_of("furthest_next_use")
    hear(guide, ("blocked", 1.0, 0.0, ("a",)), ("ready", 5.0, 0.0, ("b",)))
    store(guide, "a", "b")
    guide.assigned("ready")

    assert guide.order.victim() == "a"
    guide.assigned("blocked")
    assert guide.order.victim() == "b"


def test_a_consumer_that_cannot_run_yet_comes_before_those_that_are_far_away() -> None:
    guide = guide_of("furthest_next_use")
    hear(guide, ("blocked", 1.0, 0.0, ("a",)), ("ready", 2.0 + 2 * BLOCKED_STEPS, 0.0, ("b",)))
    store(guide, "a", "b")
    guide.assigned("ready")

    assert guide.order.victim() == "b"


def test_a_consumer_that_is_overdue_and_cannot_run_comes_after_those_that_are_near() -> None:
    guide = guide_of("furthest_next_use")
    hear(guide, ("blocked", 1.0, 0.0, ("a",)), ("now", 500.0, 0.0, ("c",)), ("near", 510.0, 0.0, ("b",)))
    store(guide, "a", "b", "c")
    guide.assigned("near")
    assert guide.order.victim() == "c"  # nothing here has run yet, and both others are nearer

    guide.assigned("now")
    guide.started("now", ["c"])
    assert guide.order.victim() == "a"
    guide.assigned("blocked")
    assert guide.order.victim() == "b"


def test_a_consumer_that_stays_overdue_is_put_off_again_and_again() -> None:
    guide = guide_of("furthest_next_use")
    hear(guide, ("blocked", 1.0, 0.0, ("a",)), ("near", 1e6, 0.0, ("b",)))
    store(guide, "a", "b")
    guide.assigned("near")
    for number in range(100):
        hear(guide, (number, 1e6 * number / 100, 0.0, ("c",)))
        guide.started(number, ["c"])
        hear(guide, (number,))

    hear(guide, ("last", 1e6 - 1, 0.0, ("c",)))
    guide.started("last", ["c"])
    assert guide.order.victim() == "a"
    assert len(guide._blocked) <= 3


def test_a_consumer_that_is_over_is_put_off_no_more() -> None:
    guide = guide_of("furthest_next_use")
    hear(guide, ("blocked", 1.0, 0.0, ("a",)), ("now", 500.0, 0.0, ("b",)))
    store(guide, "a", "b")
    hear(guide, ("blocked",))
    guide.started("now", ["b"])

    assert guide.table.rc("a") == 0


def test_a_task_may_be_assigned_before_it_is_announced() -> None:
    guide = guide_of("furthest_next_use")
    guide.assigned("ready")
    hear(guide, ("blocked", 1.0, 0.0, ("a",)), ("ready", 5.0, 0.0, ("b",)))
    store(guide, "a", "b")

    assert guide.order.victim() == "a"


def test_a_consumer_that_another_worker_starts_can_run() -> None:
    guide = guide_of("furthest_next_use")
    hear(guide, ("blocked", 1.0, 0.0, ("a",)), ("elsewhere", 5.0, 0.0, ("b",)))
    store(guide, "a", "b")
    hear(guide, ("elsewhere", True))

    assert guide.order.victim() == "a"


@pytest.mark.parametrize("is_over", [True, False])
def test_a_task_that_is_over_or_taken_away_can_run_no_more(is_over: bool) -> None:
    guide = guide_of("furthest_next_use")
    guide.assigned("t")
    if is_over:
        hear(guide, ("t",))
    else:
        guide.ended("t")
    hear(guide, ("t", 1.0, 0.0, ("a",)), ("u", 5.0, 0.0, ("b",)))
    guide.assigned("u")
    store(guide, "a", "b")

    assert guide.order.victim() == "a"


def test_a_block_that_was_fetched_before_the_word_came_is_needed_here_no_more() -> None:
    guide = guide_of("furthest_next_use")
    hear(guide, ("quick", 1.0, 0.0, ("a",)), ("other", 2.0, 0.0, ("a",)))
    store(guide, "a")
    guide.read("a")
    hear(guide, ("quick", True))

    assert guide.table.rc("a") == 1
    assert (guide.now().num_open_consumers, guide._fetched_by) == (1, {})


def test_a_block_that_was_fetched_before_an_earlier_word_was_for_somebody_else() -> None:
    guide = guide_of("furthest_next_use")
    hear(guide, ("later", 1.0, 0.0, ("a",)))
    store(guide, "a")
    guide.read("a")
    hear(guide)
    hear(guide, ("later", True))

    assert guide.table.rc("a") == 1


def test_of_values_without_readers_those_of_an_older_graph_leave_first() -> None:
    guide = guide_of("dag")
    hear(guide, num_graphs=1)
    store(guide, "old")
    hear(guide, num_graphs=2)
    guide.stored("new", 10 * MB, is_new=True)
    hear(guide, num_graphs=2)

    assert list(victims(guide)) == ["old", "new"]


def test_of_values_of_the_same_graph_clean_ones_leave_first_then_the_one_used_last() -> None:
    guide = guide_of("dag")
    store(guide, "a", "b", "c")
    guide.stored("clean", 10 * MB, is_new=False)
    for key in ("clean", "c", "a", "b"):
        guide.read(key)

    assert list(victims(guide)) == ["clean", "b", "a", "c"]


def test_small_values_count_as_tiny_only_below_their_share() -> None:
    guide = guide_of("furthest_next_use")
    store(guide, "small", size_bytes=MB // 10 - 1)
    hear(guide, ("t", 9.0, 0.0, ("small",)), ("u", 1.0, 0.0, ("large",)))
    store(guide, "large", size_bytes=MB // 10)

    assert guide.order.victim() == "large"


def test_a_new_value_is_safe_until_the_scheduler_has_spoken() -> None:
    guide = guide_of("furthest_next_use")
    hear(guide, ("t", 1.0, 0.0, ("a",)))
    store(guide, "a")
    guide.stored("new", 10 * MB, is_new=True)

    assert (guide.is_unannounced("new"), guide.order.victim()) == (True, "a")
    hear(guide)
    assert (guide.is_unannounced("new"), guide.order.victim()) == (False, "new")


def test_positions_count_in_steps_that_touch_as_much_as_memory_holds() -> None:
    guide = guide_of("dag")
    for number in range(16):
        guide.started(number, [])
        guide.finished(number)
        store(guide, number, size_bytes=10 * MB)

    assert guide._policy.capacity_bytes == pytest.approx(0.1 * 100 / (10 * 15 / 16) * 2)


def test_nothing_is_left_when_all_is_deleted_and_over() -> None:
    guide = guide_of("lerc")
    hear(guide, ("x", 1.0, 0.0, ("a", "elsewhere")), ("y", 2.0, 0.0, ("a", "b")))
    store(guide, *"ab")
    guide.assigned("x")
    guide.assigned("y")
    guide.started("x", ["a", "elsewhere"])
    guide.moved("elsewhere", is_lost=True)
    guide.finished("x")
    guide.deleted("a")
    guide.deleted("b")
    hear(guide, ("y",))

    assert (guide._values, guide._groups_of, guide._running, guide._fetched_by) == ({}, {}, {}, {})
    assert guide._can_run == guide._sent == set()
    assert len(guide.pending_frees) == guide.pending_frees.total_bytes == 0
    table = guide.table
    assert (table._groups, table._groups_of, table._in_memory, table._erc, table._size_bytes) == ({}, {}, {}, {}, {})


@given(st.permutations([*READS, ("first",), ("second",), ("third",), ("fourth",), ("fifth",)]))
def test_in_whatever_order_news_come_counts_are_those_of_what_is_open(news: list[ConsumerUpdate]) -> None:
    guide = guide_of("lrc")
    store(guide, *"abc")
    hear(guide, *news)
    still_open = [entry for at, entry in enumerate(news) if len(entry) > 1 and (entry[0],) not in news[at:]]

    assert guide.now().num_open_consumers == len(still_open)
    for block in "abc":
        assert guide.table.rc(block) == sum(len(entry) == 4 and entry[3] == (block,) for entry in still_open)


def test_counts_tell_evictions_with_readers_from_others() -> None:
    guide = guide_of("lrc")
    hear(guide, ("t", 1.0, 0.0, ("a",)))
    store(guide, "a", "b")
    guide.read("a")
    list(victims(guide))
    guide.stored("a", 10 * MB, is_new=False)
    counts = guide.now()

    assert (counts.num_evictions, counts.num_evictions_with_readers) == (2, 1)
    assert (counts.num_hits, counts.num_misses) == (1, 1)
