"""The group table against the definitions, recomputed from scratch after every event of any order."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.caching.groups import GroupTable

BLOCKS = "abcdef"


@dataclass(slots=True)
class Definitions:
    """What was said, and every answer worked out from it anew."""

    wanted: dict[int, tuple[frozenset[str], int, int]] = field(default_factory=dict)
    is_in_memory: dict[str, bool] = field(default_factory=dict)

    def open(self, consumer: int, blocks: Iterable[str], position: int, stage: int) -> None:
        self.wanted[consumer] = (frozenset(blocks), position, stage)

    def close(self, consumer: int) -> None:
        self.wanted.pop(consumer, None)

    def cached(self, block: str) -> int:
        before = self.num_complete()
        self.is_in_memory[block] = True
        return self.num_complete() - before

    def lost(self, block: str) -> int:
        before = self.num_complete()
        self.is_in_memory[block] = False
        return before - self.num_complete()

    def forget(self, block: str) -> None:
        self.wanted = {name: group for name, group in self.wanted.items() if block not in group[0]}
        self.is_in_memory.pop(block, None)

    def missing(self, consumer: int) -> set[str]:
        """Blocks of the group that existed once and are not in memory."""
        return {block for block in self.wanted[consumer][0] if self.is_in_memory.get(block) is False}

    def num_complete(self) -> int:
        return sum(not self.missing(consumer) for consumer in self.wanted)

    def answers(self) -> dict[str, tuple[object, ...]]:
        return {block: self._of(block) for block in BLOCKS}

    def _of(self, block: str) -> tuple[object, ...]:
        readers = [consumer for consumer, (blocks, _, _) in self.wanted.items() if block in blocks]
        return (
            len(readers),
            sum(not self.missing(consumer) for consumer in readers),
            min((self.wanted[consumer][1] for consumer in readers), default=math.inf),
            min((self.wanted[consumer][2] for consumer in readers), default=math.inf),
            self.is_in_memory.get(block) is True,
            self.is_in_memory.get(block) is False,
            {consumer: self.missing(consumer) for consumer in readers},
        )


def answers_of(table: GroupTable) -> dict[str, tuple[object, ...]]:
    """What the table says about every block, in the same order."""
    return {
        block: (
            table.rc(block),
            table.erc(block),
            table.next_use(block),
            table.next_stage(block),
            table.in_memory(block),
            table.is_lost(block),
            {group.consumer: set(group.missing) for group in table.groups(block)},
        )
        for block in BLOCKS
    }


Event = tuple[Any, ...]
block_names, consumers = st.sampled_from(BLOCKS), st.integers(0, 5)
opening = st.tuples(
    st.just("open"), consumers, st.lists(block_names, max_size=4).map(tuple), st.integers(0, 9), st.integers(0, 4)
)
about_blocks = st.tuples(st.sampled_from(["cached", "lost", "cached", "lost", "forget"]), block_names)
events = st.lists(st.one_of(opening, opening, about_blocks, st.tuples(st.just("close"), consumers)), max_size=40)


def tell(listener: GroupTable | Definitions, event: Event) -> int | None:
    answer: int | None = getattr(listener, event[0])(*event[1:])
    return answer


@settings(max_examples=200, deadline=None)
@given(events=events)
def test_counts_equal_their_definitions_after_every_event(events: list[Event]) -> None:
    table, definitions = GroupTable(), Definitions()
    for event in events:
        assert tell(table, event) == tell(definitions, event)
        assert answers_of(table) == definitions.answers()
        assert all(0 <= table.erc(block) <= table.rc(block) for block in BLOCKS)
        assert all(table.is_open(consumer) == (consumer in definitions.wanted) for consumer in range(6))


@settings(max_examples=100, deadline=None)
@given(events=events)
def test_repeating_an_event_changes_nothing(events: list[Event]) -> None:
    table = GroupTable()
    for event in events:
        tell(table, event)
        before = answers_of(table)
        num_changed = tell(table, event)

        assert not num_changed
        assert answers_of(table) == before


@settings(max_examples=100, deadline=None)
@given(
    opened=st.dictionaries(consumers, st.lists(block_names, max_size=4).map(tuple)),
    in_memory=st.dictionaries(block_names, st.booleans()),
    seed=st.integers(0, 1000),
)
def test_the_order_in_which_news_arrive_does_not_matter(
    opened: dict[int, tuple[str, ...]], in_memory: dict[str, bool], seed: int
) -> None:
    news: list[Event] = [("open", consumer, blocks, consumer, consumer) for consumer, blocks in opened.items()]
    news += [("cached" if here else "lost", block) for block, here in in_memory.items()]
    tables = [GroupTable(), GroupTable()]
    for event in news:
        tell(tables[0], event)
    random.Random(seed).shuffle(news)
    for event in news:
        tell(tables[1], event)

    assert answers_of(tables[0]) == answers_of(tables[1])


# By hand ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def table() -> GroupTable:
    """Two consumers read {a, b} and {b, c}; a and b are in memory, c does not exist yet."""
    table = GroupTable()
    table.open("first", "ab", position=10, stage=1)
    table.open("second", "bc", position=20, stage=2)
    table.cached("a")
    table.cached("b")
    return table


def test_a_block_that_does_not_exist_yet_leaves_its_group_complete(table: GroupTable) -> None:
    assert [table.rc(block) for block in "abc"] == [1, 2, 1]
    assert [table.erc(block) for block in "abc"] == [1, 2, 1]


def test_losing_a_block_breaks_every_group_that_reads_it(table: GroupTable) -> None:
    assert table.lost("b") == 2
    assert [table.erc(block) for block in "abc"] == [0, 0, 0]
    assert [table.rc(block) for block in "abc"] == [1, 2, 1]


def test_a_broken_group_does_not_break_again(table: GroupTable) -> None:
    table.lost("b")

    assert table.lost("a") == 0


def test_a_group_is_complete_only_when_the_last_block_is_back(table: GroupTable) -> None:
    table.lost("a")
    table.lost("b")

    assert table.cached("b") == 1  # the second group; the first still misses a
    assert table.cached("a") == 1


def test_a_block_that_is_made_for_the_first_time_completes_nothing(table: GroupTable) -> None:
    assert table.cached("c") == 0


def test_a_block_that_was_refused_when_it_was_made_counts_as_lost(table: GroupTable) -> None:
    table.cached("c")

    assert table.lost("c") == 1
    assert table.erc("b") == 1


def test_closing_a_consumer_takes_its_references_away(table: GroupTable) -> None:
    table.close("first")

    assert [table.rc(block) for block in "abc"] == [0, 1, 1]
    assert table.next_use("a") == math.inf


def test_opening_a_consumer_again_replaces_what_it_reads(table: GroupTable) -> None:
    table.open("first", "c", position=5, stage=0)

    assert [table.rc(block) for block in "abc"] == [0, 1, 2]
    assert (table.next_use("c"), table.next_stage("c")) == (5, 0)


def test_a_block_named_twice_counts_once() -> None:
    table = GroupTable()
    table.open("reader", "aab")

    assert (table.rc("a"), table.erc("a")) == (1, 1)


def test_forgetting_a_block_drops_the_consumers_that_wait_for_it(table: GroupTable) -> None:
    table.describe("b", 7, 1.5)
    table.forget("b")

    assert [table.rc(block) for block in "abc"] == [0, 0, 0]
    assert not table.is_open("first")
    assert (table.size_bytes("b"), table.cost_s("b")) == (1, 0.0)


def test_a_forgotten_block_that_comes_back_is_new(table: GroupTable) -> None:
    table.lost("a")
    table.forget("a")
    table.open("third", "a")

    assert table.erc("a") == 1
