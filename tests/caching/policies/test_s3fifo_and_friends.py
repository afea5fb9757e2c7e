"""Sequences of requests worked out by hand for the policies that look at past reads.

A story is a row of words, one per request: `a` enters where there is room, `a+` is a hit, `d-bc` enters and pushes out
b and then c, `d!` is refused. Blocks have size one unless the story says otherwise.
"""

from __future__ import annotations

import pytest

from takeup.caching.contract import Policy
from takeup.caching.groups import GroupTable
from takeup.caching.policies import POLICIES
from takeup.caching.policies.s3fifo import S3Fifo
from takeup.caching.policies.sieve import Sieve

TEN = "a b c d e f g h i j"  # fills a cache of ten: for S3-FIFO a stands in the small queue, the others in main
THREE = "a B C"  # the same with sizes: a in the small queue, B before C in main
SIZES_OF_THREE = {"B": 5, "C": 4}


def told_by_policy(name: str, capacity_bytes: int, blocks: list[str], sizes: dict[str, int]) -> list[str]:
    """What the plain policy does with each request, in the words of a story."""
    policy: Policy = POLICIES[name].make(GroupTable(), capacity_bytes)
    cached: dict[str, int] = {}
    return [_serve(policy, capacity_bytes, cached, block, sizes.get(block, 1)) for block in blocks]


def _serve(policy: Policy, capacity_bytes: int, cached: dict[str, int], block: str, size_bytes: int) -> str:
    if block in cached:
        policy.read(block)
        return f"{block}+"
    room = policy.make_room(block, size_bytes, capacity_bytes - sum(cached.values()), ())
    for victim in room.evict:
        del cached[str(victim.block)]
        policy.removed(victim.block)
    if not room.admit:
        return f"{block}!"
    policy.stored(block, size_bytes)
    cached[block] = size_bytes
    return f"{block}-{''.join(str(victim.block) for victim in room.evict)}".rstrip("-")


def assert_happens(name: str, capacity_bytes: int, story: str, sizes: dict[str, int] | None = None) -> None:
    words, sizes = story.split(), sizes or {}
    blocks = [word[0] for word in words]

    assert told_by_policy(name, capacity_bytes, blocks, sizes) == words


# S3-FIFO ------------------------------------------------------------------------------------------------------------


def test_s3fifo_lets_a_new_block_go_that_was_read_once() -> None:
    assert_happens("s3fifo", 10, f"{TEN} a+ k-a l-k")


def test_s3fifo_moves_a_new_block_to_main_that_was_read_twice() -> None:
    assert_happens("s3fifo", 10, f"{TEN} a+ a+ k-b l-k a+")


def test_s3fifo_forgets_a_block_that_left_main() -> None:
    """Were b remembered, it would come back into main, and c would leave for m."""
    assert_happens("s3fifo", 10, f"{TEN} a+ a+ k-b l-k b-l m-b c+")


def test_s3fifo_lets_main_give_way_once_a_returning_block_puts_it_above_its_share() -> None:
    assert_happens("s3fifo", 10, f"{TEN} k-a a-k l-b m-l a+")


def test_s3fifo_remembers_nine_names_in_a_cache_of_ten() -> None:
    """When a is asked for, nine names are remembered and its own is the oldest; its victim s must not push it out."""
    assert_happens("s3fifo", 10, f"{TEN} k-a l-k m-l n-m o-n p-o q-p r-q s-r a-s t-b")


def test_s3fifo_has_forgotten_the_tenth_name() -> None:
    assert_happens("s3fifo", 10, f"{TEN} k-a l-k m-l n-m o-n p-o q-p r-q s-r t-s a-t u-a b+")


def test_s3fifo_uses_a_memory_once() -> None:
    """Back in main, a leaves for good after nine others; asked for again it is new, so it leaves for x at once."""
    nine_leave_main = "l-b k-l m-c l-m n-d m-n o-e n-o p-f o-p q-g p-q r-h q-r s-i r-s t-j s-t"

    assert_happens("s3fifo", 10, f"{TEN} k-a a-k {nine_leave_main} u-a a-u x-a")


def test_s3fifo_counts_a_third_read_in_main() -> None:
    """B has three reads left and C two: on the third round C leaves. Block a, moved and unread, leaves before."""
    assert_happens("s3fifo", 10, f"{THREE} a+ a+ B+ B+ B+ C+ C+ D-aC B+ C-D", {**SIZES_OF_THREE, "D": 2})


def test_s3fifo_does_not_count_a_fourth_read() -> None:
    """Four reads of B are worth no more than three of C, so the older of the two leaves."""
    assert_happens("s3fifo", 10, f"{THREE} a+ a+ B+ B+ B+ B+ C+ C+ C+ D-aB C+ B-D", {**SIZES_OF_THREE, "D": 2})


def test_s3fifo_makes_a_block_pay_a_read_for_another_round() -> None:
    """B pays its only read when C leaves; when room is needed again, a pays and B has nothing left."""
    sizes = {**SIZES_OF_THREE, "D": 2, "E": 4, "F": 5}

    assert_happens("s3fifo", 10, f"{THREE} a+ a+ B+ D-C a+ E-D F-EB a+", sizes)


def test_s3fifo_forgets_the_reads_of_a_block_that_left() -> None:
    """Block a was read once before it left; back in main it is unread, and B and C were read."""
    assert_happens("s3fifo", 10, f"{THREE} a+ d-a a-d B+ C+ e-a", SIZES_OF_THREE)


def test_s3fifo_without_a_small_share_fills_main_and_then_tries_newcomers_one_by_one() -> None:
    """A tenth of five bytes is none: all fill main; the first newcomer pushes a out, then newcomers replace each other.

    Four names are remembered; h comes back into main, which is full, so i pushes b out.
    """
    assert_happens("s3fifo", 5, "a b c d e f-a g-f h-g i-h h-i j-b")


@pytest.mark.parametrize(("capacity_bytes", "num_small"), [(9, 0), (10, 1), (19, 1), (20, 2), (30, 3)])
def test_s3fifo_warms_up_with_a_tenth_in_the_small_queue_and_the_rest_in_main(
    capacity_bytes: int, num_small: int
) -> None:
    policy = S3Fifo(GroupTable(), capacity_bytes)
    for block in range(capacity_bytes):
        policy.make_room(block, 1, capacity_bytes - block, ())
        policy.stored(block, 1)

    assert list(policy.small) == list(range(num_small))
    assert list(policy.main) == list(range(num_small, capacity_bytes))


# SIEVE --------------------------------------------------------------------------------------------------------------


def test_sieve_judges_newcomers_before_what_its_hand_has_passed() -> None:
    assert_happens("sieve", 3, "a b c a+ d-b e-c f-d g-e a+")


def test_sieve_starts_over_at_the_oldest_when_its_victim_was_the_newest() -> None:
    """For e the hand passes c, takes d, the newest, and starts over: at a, which was read, then c, which was not."""
    assert_happens("sieve", 3, "a b c a+ d-b a+ c+ e-d f-c g-e a+")


def test_sieve_clears_every_mark_on_a_full_round_and_takes_the_oldest() -> None:
    assert_happens("sieve", 3, "a b c a+ b+ c+ d-a e-b f-c g-d")


def test_sieve_takes_as_many_as_a_large_block_needs() -> None:
    sizes = {"c": 2, "D": 3}

    assert_happens("sieve", 4, "a b c a+ D-bc e-a f-D", sizes)


def test_sieve_stays_where_it_is_when_the_block_under_its_hand_leaves_for_another_reason() -> None:
    policy = Sieve(GroupTable(), 4)
    for block in "abcd":
        policy.stored(block, 1)
    policy.read("a")
    policy.make_room("e", 1, 0, ())  # takes b, and the hand stands at c
    policy.removed("c")

    assert [victim.block for victim in policy.make_room("e", 1, 0, ()).evict] == ["d"]


def test_sieve_keeps_pointing_at_its_block_when_one_before_it_leaves() -> None:
    policy = Sieve(GroupTable(), 5)
    for block in "abcde":
        policy.stored(block, 1)
    policy.read("a")
    policy.make_room("f", 1, 0, ())  # takes b, and the hand stands at c
    policy.removed("a")

    assert [victim.block for victim in policy.make_room("f", 1, 0, ()).evict] == ["c"]


def test_sieve_starts_over_when_the_newest_leaves_from_under_its_hand() -> None:
    policy = Sieve(GroupTable(), 3)
    for block in "abc":
        policy.stored(block, 1)
    policy.read("a")
    policy.make_room("e", 1, 0, ())  # takes b, and the hand stands at c
    policy.removed("c")
    policy.stored("d", 1)

    assert [victim.block for victim in policy.make_room("e", 1, 0, ()).evict] == ["a"]


# GDSF, LFU and the two plain queues ---------------------------------------------------------------------------------


def test_gdsf_of_unit_sizes_lets_newcomers_catch_up_with_old_reads() -> None:
    """Priorities: a 2, b 1, c 1; the age is 1 when d comes, so d stands at 2 like a, which was used less recently.

    Then d is read at age 2 and stands at 4; e 2, f 3, g 3, h 4, and for i the older of d and h leaves.
    """
    assert_happens("gdsf", 2, "a b a+ c-b d-c e-a d+ f-e g-f h-g i-d h+")


def test_gdsf_refuses_a_large_newcomer_until_the_age_has_caught_up_with_its_victims() -> None:
    """Block b stands at 2. Each refusal of C, four bytes, raises the age by a quarter; at the eighth try it has 2."""
    assert_happens("gdsf", 4, f"A b b+ {'C! ' * 7} C-Ab C+", {"A": 2, "C": 4})


def test_gdsf_weighs_reads_by_size() -> None:
    """Three reads of four bytes are worth 0.75; one of a byte is worth 1, and of two bytes, as the newcomer, 0.5."""
    assert_happens("gdsf", 5, "A A+ A+ b D! b+ A+", {"A": 4, "D": 2})


def test_gdsf_counts_a_read_from_the_age_at_which_it_happens() -> None:
    """D is refused at 0.5, which is the age from then on: its fourth use lifts A to 1.5, so b leaves at 1."""
    assert_happens("gdsf", 5, "A A+ A+ b D! A+ e-b A+", {"A": 4, "D": 2})


def test_lfu_counts_from_one_when_a_block_comes_back() -> None:
    """Block a was used twice before it left. Were that remembered, it would tie with b, which is less recent."""
    assert_happens("lfu", 2, "a a+ b b+ b+ c-a a-c d-a b+")


def test_lfu_takes_the_rarely_used_first_however_large_the_newcomer() -> None:
    assert_happens("lfu", 4, "a a+ B c c+ c+ D-Ba c+ D+", {"B": 2, "D": 3})


def test_fifo_and_lru_part_ways_at_the_first_hit() -> None:
    assert_happens("fifo", 2, "a b a+ c-a b+ a-b c+ b-c")
    assert_happens("lru", 2, "a b a+ c-b a+ b-c a+ c-b")


def test_lru_pushes_out_several_small_blocks_in_the_order_of_their_last_use() -> None:
    assert_happens("lru", 4, "a b c d a+ E-bcd a+ b-E E-a b+", {"E": 3})
