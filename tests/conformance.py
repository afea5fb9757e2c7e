"""What every caching policy must keep to, whatever it ranks by: a store carries its answers out and checks each one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hypothesis import strategies as st

from takeup.caching.contract import PolicySpec
from takeup.caching.groups import GroupTable
from takeup.caching.model import AdmissionDecision
from takeup.caching.policies import POLICIES

__all__ = ["CHECKS", "VARIANTS", "Check", "Script", "scripts"]

VARIANTS = (
    *POLICIES,
    *(f"{name}{sign}admission" for name, spec in POLICIES.items() if spec.uses_table for sign in "+-"),
)
NUM_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class Open:
    """A consumer is announced."""

    consumer: int
    blocks: tuple[int, ...]
    position: int
    stage: int


@dataclass(frozen=True, slots=True)
class Close:
    """A consumer has run."""

    consumer: int


@dataclass(frozen=True, slots=True)
class Use:
    """A task reads the block, which comes in if it is not there; what the task holds is pinned."""

    block: int
    pinned: frozenset[int]


@dataclass(frozen=True, slots=True)
class Drop:
    """The block leaves without being asked for, as when it is unpersisted or its worker dies."""

    block: int


Event = Open | Close | Use | Drop


@dataclass(frozen=True, slots=True)
class Script:
    """A store and all that happens to it; block `b` has `sizes_bytes[b]`."""

    capacity_bytes: int
    sizes_bytes: tuple[int, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """A decision, with what was known when it was asked for."""

    block: int
    size_bytes: int
    stored: dict[int, int]
    free_bytes: int
    pinned: frozenset[int]
    room: AdmissionDecision

    @property
    def victims(self) -> list[object]:
        return [eviction.block for eviction in self.room.evict]


def _events() -> st.SearchStrategy[Event]:
    block, consumer = st.integers(0, NUM_BLOCKS - 1), st.integers(0, 5)
    some_blocks = st.frozensets(block, max_size=3)
    use = st.builds(Use, block, some_blocks)
    wanted = st.builds(Open, consumer, some_blocks.map(lambda chosen: tuple(sorted(chosen))), block, consumer)
    return st.one_of(use, use, wanted, st.builds(Close, consumer), st.builds(Drop, block))


scripts = st.builds(
    Script,
    capacity_bytes=st.integers(1, 12),
    sizes_bytes=st.tuples(*[st.integers(1, 5)] * NUM_BLOCKS),
    events=st.lists(_events(), max_size=50).map(tuple),
)


def answers(spec: PolicySpec, script: Script) -> Iterator[Answer]:
    """Play the script as an engine does, and give every answer of the policy before it is carried out."""
    table = GroupTable()
    policy = spec.make(table, script.capacity_bytes)
    stored: dict[int, int] = {}
    for event in script.events:
        match event:
            case Open():
                table.open(event.consumer, event.blocks, event.position, event.stage)
            case Close():
                table.close(event.consumer)
            case Drop() if event.block in stored:
                del stored[event.block]
                policy.removed(event.block)
                table.lost(event.block)
            case Use() if event.block in stored:
                policy.read(event.block)
            case Use():
                size_bytes = script.sizes_bytes[event.block]
                free_bytes = script.capacity_bytes - sum(stored.values())
                table.describe(event.block, size_bytes, float(size_bytes))
                table.cached(event.block)
                room = policy.make_room(event.block, size_bytes, free_bytes, event.pinned)
                yield Answer(event.block, size_bytes, dict(stored), free_bytes, event.pinned, room)
                for eviction in room.evict:
                    assert isinstance(eviction.block, int)
                    del stored[eviction.block]
                    policy.removed(eviction.block)
                    table.lost(eviction.block)
                if room.admit:
                    stored[event.block] = size_bytes
                    policy.stored(event.block, size_bytes)
                else:
                    table.lost(event.block)


def same_events_get_the_same_answers(spec: PolicySpec, script: Script) -> None:
    assert [answer.room for answer in answers(spec, script)] == [answer.room for answer in answers(spec, script)]


def only_stored_blocks_leave_once_and_unpinned(spec: PolicySpec, script: Script) -> None:
    for answer in answers(spec, script):
        assert set(answer.victims) <= answer.stored.keys() - answer.pinned
        assert len(set(answer.victims)) == len(answer.victims)


def what_leaves_is_enough_and_no_more_than_needed(spec: PolicySpec, script: Script) -> None:
    for answer in answers(spec, script):
        freed_bytes = [answer.stored[eviction.block] for eviction in answer.room.evict]  # type: ignore[index]
        if answer.room.admit:
            assert answer.free_bytes + sum(freed_bytes) >= answer.size_bytes
            assert not freed_bytes or answer.free_bytes + sum(freed_bytes[:-1]) < answer.size_bytes
        else:
            assert not freed_bytes


def the_store_is_never_over_capacity(spec: PolicySpec, script: Script) -> None:
    for answer in answers(spec, script):
        assert sum(answer.stored.values()) <= script.capacity_bytes


def every_eviction_and_refusal_has_a_reason(spec: PolicySpec, script: Script) -> None:
    for answer in answers(spec, script):
        assert all(eviction.reason.strip() for eviction in answer.room.evict)
        assert answer.room.admit or answer.room.reason.strip()


def a_block_enters_without_evictions_while_it_fits(spec: PolicySpec, script: Script) -> None:
    for answer in answers(spec, script):
        if answer.size_bytes <= answer.free_bytes:
            assert answer.room == AdmissionDecision((), admit=True)


def a_block_that_cannot_fit_is_refused(spec: PolicySpec, script: Script) -> None:
    for answer in answers(spec, script):
        held_bytes = sum(size for block, size in answer.stored.items() if block in answer.pinned)
        if answer.size_bytes > script.capacity_bytes - held_bytes:
            assert not answer.room.admit


def only_a_policy_that_judges_newcomers_refuses_what_could_fit(spec: PolicySpec, script: Script) -> None:
    for answer in answers(spec, script):
        held_bytes = sum(size for block, size in answer.stored.items() if block in answer.pinned)
        assert spec.admission or answer.room.admit == (answer.size_bytes <= script.capacity_bytes - held_bytes)


Check = Callable[[PolicySpec, Script], None]
CHECKS: tuple[Check, ...] = (
    same_events_get_the_same_answers,
    only_stored_blocks_leave_once_and_unpinned,
    what_leaves_is_enough_and_no_more_than_needed,
    the_store_is_never_over_capacity,
    every_eviction_and_refusal_has_a_reason,
    a_block_enters_without_evictions_while_it_fits,
    a_block_that_cannot_fit_is_refused,
    only_a_policy_that_judges_newcomers_refuses_what_could_fit,
)
