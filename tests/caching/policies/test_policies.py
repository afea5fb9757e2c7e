"""DAG-aware policies by hand: which block leaves, which is refused, and the names policies answer to."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.caching.groups import GroupTable
from takeup.caching.model import AdmissionDecision
from takeup.caching.policies import POLICIES, find_policy
from takeup.errors import BadInput, UnknownName


class Cache:
    """A store in front of a group table, as an engine drives it; every block has one byte and costs one second."""

    def __init__(self, policy: str, capacity_bytes: int) -> None:
        self.table = GroupTable()
        self.policy = find_policy(policy).make(self.table, capacity_bytes)
        self.free_bytes = capacity_bytes
        self.sizes: dict[str, int] = {}

    def task(self, name: str, blocks: str, position: float = 0, stage: int = 0) -> None:
        """A consumer of these one-letter blocks is announced."""
        self.table.open(name, blocks, position, stage)

    def put(self, block: str, size_bytes: int = 1, cost_s: float = 1.0, pinned: Iterable[str] = ()) -> str:
        """Offer the block; answers what left for it, or `!` if it was refused."""
        room = self.ask(block, size_bytes, cost_s, pinned)
        for eviction in room.evict:
            self.lose(str(eviction.block))
        if not room.admit:
            self.table.lost(block)
            return "!"
        self.policy.stored(block, size_bytes)
        self.sizes[block] = size_bytes
        self.free_bytes -= size_bytes
        return "".join(str(eviction.block) for eviction in room.evict)

    def ask(
        self, block: str, size_bytes: int = 1, cost_s: float = 1.0, pinned: Iterable[str] = ()
    ) -> AdmissionDecision:
        self.table.describe(block, size_bytes, cost_s)
        self.table.cached(block)
        return self.policy.make_room(block, size_bytes, self.free_bytes, frozenset(pinned))

    def lose(self, block: str) -> None:
        self.policy.removed(block)
        self.free_bytes += self.sizes.pop(block)
        self.table.lost(block)

    def fill(self, blocks: str) -> None:
        for block in blocks:
            assert self.put(block) == ""


# Counts -------------------------------------------------------------------------------------------------------------


def toy(policy: str) -> Cache:
    """Two tasks read {a, b} and {c, d}; a, b and c are in memory, d was lost."""
    cache = Cache(policy, 3)
    cache.task("first", "ab")
    cache.task("second", "cd")
    cache.table.lost("d")
    cache.fill("abc")
    return cache


def test_lerc_drops_the_block_whose_peer_is_lost() -> None:
    assert toy("lerc").put("e") == "c"


def test_lrc_sees_no_difference_and_drops_the_least_recent() -> None:
    assert toy("lrc").put("e") == "a"


def test_lerc_says_how_many_groups_the_victim_completes() -> None:
    (eviction,) = toy("lerc").ask("e").evict

    assert eviction.reason == "completes 0 groups, of 1 that read it"


def test_lerc_forgives_a_peer_that_does_not_exist_yet() -> None:
    cache = Cache("lerc", 3)
    cache.task("first", "ab")
    cache.task("second", "cd")
    cache.fill("cab")

    assert cache.put("e") == "c"  # all three complete a group, and c is the oldest: d is not lost, only not made yet


def test_lerc_breaks_ties_by_the_plain_count() -> None:
    cache = Cache("lerc", 2)
    for number, blocks in enumerate(("ax", "ay", "bx")):
        cache.task(f"task {number}", blocks)
    for lost in "xy":
        cache.table.lost(lost)
    cache.fill("ab")

    assert cache.put("e") == "b"  # neither completes anything; two tasks still read a, one reads b


def test_lrc_drops_the_block_that_the_fewest_tasks_read() -> None:
    cache = Cache("lrc", 3)
    for number, blocks in enumerate(("ac", "ac", "ab")):
        cache.task(f"task {number}", blocks)
    cache.fill("abc")

    assert cache.put("e") == "b"


def test_lrc_counts_only_tasks_that_have_not_run() -> None:
    cache = Cache("lrc", 2)
    for number, blocks in enumerate(("a", "a", "b")):
        cache.task(f"task {number}", blocks)
    cache.fill("ab")
    cache.table.close("task 0")
    cache.table.close("task 1")

    assert cache.put("e") == "a"


def test_lrc_drops_what_nobody_reads_however_recent() -> None:
    cache = Cache("lrc", 2)
    cache.task("reader", "a")
    cache.fill("ab")
    cache.policy.read("b")

    assert cache.put("e") == "b"


def test_victims_leave_until_the_block_fits() -> None:
    cache = Cache("lrc", 4)
    cache.task("reader", "a")
    cache.fill("abcd")

    assert cache.put("e", 2) == "bc"


def test_a_pinned_block_is_passed_over() -> None:
    assert toy("lerc").put("e", pinned="c") == "a"


# Distances ----------------------------------------------------------------------------------------------------------


def test_mrd_drops_the_block_whose_next_stage_is_farthest() -> None:
    cache = Cache("mrd", 3)
    cache.task("soon", "ab", stage=1)
    cache.task("later", "bc", stage=4)
    cache.fill("abc")

    assert cache.put("e") == "c"


def test_mrd_takes_never_read_again_as_farthest() -> None:
    cache = Cache("mrd", 2)
    cache.task("later", "a", stage=1000)
    cache.fill("ab")

    assert cache.put("e") == "b"


def test_mrd_cannot_tell_tasks_of_one_stage_apart_but_next_can() -> None:
    victims = []
    for policy in ("mrd", "furthest_next_use"):
        cache = Cache(policy, 2)
        cache.task("first", "a", position=10, stage=1)
        cache.task("second", "b", position=20, stage=1)
        cache.fill("ab")
        victims.append(cache.put("e"))

    assert victims == ["a", "b"]


def test_next_looks_at_the_first_of_several_readers() -> None:
    cache = Cache("furthest_next_use", 2)
    cache.task("first", "a", position=10)
    cache.task("second", "b", position=20)
    cache.task("third", "a", position=99)
    cache.fill("ab")

    assert cache.put("e") == "b"


def test_min_refuses_a_block_that_is_read_later_than_all_others() -> None:
    cache = Cache("belady", 2)
    for position, block in enumerate("abe"):
        cache.task(block, block, position)
    cache.fill("ab")

    assert cache.put("e") == "!"


def test_min_drops_the_block_that_is_read_last() -> None:
    cache = Cache("belady", 2)
    for position, block in enumerate("aeb"):
        cache.task(block, block, position)
    cache.fill("ab")

    assert cache.put("e") == "b"


def test_min_drops_what_is_never_read_again_even_for_something_that_is_not_read_either() -> None:
    cache = Cache("belady", 2)
    cache.task("reader", "b")
    cache.fill("ab")

    assert cache.put("e") == "a"


# DAG value ----------------------------------------------------------------------------------------------------------


def test_dag_drops_the_cheaper_of_two_neighbours() -> None:
    cache = Cache("dag-admission", 2)
    cache.task("reader", "ab")
    cache.put("a", cost_s=5)
    cache.put("b", cost_s=4)

    assert cache.put("e") == "b"


def test_dag_drops_the_larger_of_two_equally_dear_neighbours() -> None:
    cache = Cache("dag-admission", 5)
    cache.task("reader", "ab")
    cache.put("a", size_bytes=2)
    cache.put("b", size_bytes=3)

    assert cache.put("e") == "b"


def test_dag_weighs_cost_against_size() -> None:
    cache = Cache("dag-admission", 6)
    cache.task("reader", "ab")
    cache.put("a", size_bytes=2, cost_s=4)  # two seconds for each byte
    cache.put("b", size_bytes=4, cost_s=9)  # more

    assert cache.put("e") == "a"


def test_dag_keeps_the_block_that_is_needed_sooner() -> None:
    cache = Cache("dag-admission", 2)
    cache.task("later", "a", position=2)
    cache.task("sooner", "b", position=1)
    cache.fill("ab")

    assert cache.put("e") == "a"


@pytest.mark.parametrize(("cost_s", "victim"), [(100.0, "a"), (1000.0, "b")])
def test_dag_keeps_a_block_that_is_needed_later_only_if_it_is_much_dearer(cost_s: float, victim: str) -> None:
    cache = Cache("dag-admission", 2)
    cache.task("later", "a", position=11)
    cache.task("sooner", "b", position=1)
    cache.put("a", cost_s=cost_s)  # ten bytes are five horizons of two bytes: worth a factor of e**5 = 148
    cache.put("b", cost_s=1.0)

    assert cache.put("e") == victim


def test_dag_tells_far_readers_apart() -> None:
    cache = Cache("dag-admission", 2)
    cache.task("far", "a", position=1e6)
    cache.task("farther", "b", position=1e6 + 1)
    cache.fill("ab")

    assert cache.put("e") == "b"


groups = st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True), max_size=8)


@given(groups=groups)
def test_dag_with_unit_costs_and_no_distance_is_lrc(groups: list[list[str]]) -> None:
    victims = []
    for policy in ("dag-admission", "lrc"):
        cache = Cache(policy, 4)
        for number, blocks in enumerate(groups):
            cache.task(f"task {number}", "".join(blocks))
        cache.fill("abcd")
        victims.append(cache.put("e"))

    assert victims[0] == victims[1]


# Admission ----------------------------------------------------------------------------------------------------------


def test_admission_refuses_a_block_that_is_worth_no_more_than_what_would_leave() -> None:
    cache = Cache("lrc+admission", 1)
    cache.task("first", "a")
    cache.task("second", "e")
    cache.fill("a")

    assert cache.put("e") == "!"


def test_admission_lets_in_what_is_worth_more() -> None:
    cache = Cache("lrc+admission", 1)
    cache.task("first", "ae")
    cache.task("second", "e")
    cache.fill("a")

    assert cache.put("e") == "a"


def test_under_admission_what_nobody_reads_gives_way_to_anything() -> None:
    cache = Cache("lrc+admission", 1)
    cache.fill("a")

    assert cache.put("e") == "a"


def test_a_block_is_refused_whole_if_only_some_of_the_room_may_be_had() -> None:
    cache = Cache("lrc+admission", 2)
    cache.task("first", "be")
    cache.fill("ab")

    assert cache.put("e", 2) == "!"
    assert set(cache.sizes) == {"a", "b"}


def test_a_refusal_says_why() -> None:
    cache = Cache("lrc+admission", 1)
    cache.task("both", "ae")
    cache.fill("a")

    assert cache.ask("e").reason == "not enough bytes of lower rank"


def test_without_admission_min_lets_in_what_is_read_last() -> None:
    cache = Cache("belady-admission", 1)
    cache.task("soon", "a", position=1)
    cache.task("later", "e", position=2)
    cache.fill("a")

    assert cache.put("e") == "a"


# Names --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_found_by_its_name(name: str) -> None:
    spec = find_policy(name)

    assert (spec.name, spec.base, spec.admission) == (name, name, POLICIES[name].admission)


@pytest.mark.parametrize(
    ("text", "base", "admission"),
    [
        ("lerc+admission", "lerc", True),
        ("lerc-admission", "lerc", False),
        ("dag-admission", "dag", False),
        ("dag+admission", "dag", True),
        ("belady-admission", "belady", False),
    ],
)
def test_admission_can_be_asked_for_and_turned_off(text: str, base: str, admission: bool) -> None:
    spec = find_policy(text)

    assert (spec.name, spec.base, spec.admission) == (text, base, admission)
    assert spec.offline == (base == "belady")


def test_admission_needs_a_rank_to_compare_with() -> None:
    with pytest.raises(BadInput, match=r"policy 'lru' keeps no rank .* drop '\+admission'"):
        find_policy("lru+admission")


def test_turning_off_an_admission_that_is_not_there_is_fine() -> None:
    assert find_policy("lru-admission").admission is False


def test_an_unknown_policy_gets_a_suggestion() -> None:
    with pytest.raises(UnknownName, match="no caching policy 'lrcc'; did you mean 'lrc'"):
        find_policy("lrcc")


def test_an_unknown_policy_with_an_option_is_still_unknown() -> None:
    with pytest.raises(UnknownName, match="no caching policy 'lercc'; did you mean 'lerc'"):
        find_policy("lercc+admission")


@pytest.mark.parametrize("text", ["lerc+prefetch", "lerc-prefetch", "lerc+", "lerc+admission+admission"])
def test_an_unknown_option_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match=r"the only option is '\+admission' or '-admission'"):
        find_policy(text)
