"""Every policy, with and without admission, keeps to the contract on random sequences of events."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from conformance import CHECKS, VARIANTS, Check, Script, answers, scripts
from takeup.caching.groups import GroupTable
from takeup.caching.model import AdmissionDecision
from takeup.caching.policies import find_policy


def names() -> list[str]:
    """Options that a policy has by default are written out by nobody; they are the same policy."""
    return [name for name in VARIANTS if name not in ("dag+admission", "belady+admission")]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", names())
@settings(max_examples=15, deadline=None)
@given(script=scripts)
def test_every_policy_keeps_to_the_contract(name: str, check: Check, script: Script) -> None:
    check(find_policy(name), script)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_block_larger_than_the_store_is_refused_and_moves_nothing(name: str) -> None:
    table = GroupTable()
    policy = find_policy(name).make(table, 4)
    policy.stored("small", 3)

    room = policy.make_room("large", 5, 1, pinned=())

    assert (room.evict, room.admit) == ((), False)
    assert policy.make_room("other", 1, 1, pinned=()) == AdmissionDecision((), admit=True)


@pytest.mark.parametrize("name", VARIANTS)
def test_when_everything_is_pinned_nothing_leaves(name: str) -> None:
    policy = find_policy(name).make(GroupTable(), 2)
    for block in "ab":
        policy.stored(block, 1)

    room = policy.make_room("c", 1, 0, pinned={"a", "b"})

    assert (room.evict, room.admit) == ((), False)


@pytest.mark.parametrize("name", ["dag", "belady"])
@settings(max_examples=15, deadline=None)
@given(script=scripts)
def test_a_default_written_out_is_the_same_policy(name: str, script: Script) -> None:
    plain = [answer.room for answer in answers(find_policy(name), script)]

    assert plain == [answer.room for answer in answers(find_policy(f"{name}+admission"), script)]
