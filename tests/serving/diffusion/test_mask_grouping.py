"""Edits share calls so that padding and calls together cost least: equal to trying every way to split them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.errors import BadInput
from takeup.serving.diffusion.policies import Grouping, MaskGrouping
from takeup.serving.model import Candidate

SHARES = st.sampled_from([0.05, 0.1, 0.2, 0.5, 0.9, 1.0])
EDITS = st.lists(SHARES, min_size=1, max_size=6)
MIXED = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(1, 2), st.sampled_from([1.0, 2.0, 9.0]), SHARES), max_size=9
)


def edits(*shares: float, num_rows: int = 2) -> list[Candidate]:
    return [Candidate(number, "masked", num_rows, computed_share=share) for number, share in enumerate(shares)]


def partitions(members: Sequence[Candidate]) -> Iterator[list[list[Candidate]]]:
    """All ways to put them into calls, neighbours or not."""
    if not members:
        yield []
        return
    first, *rest = members
    for split in partitions(rest):
        for number, call in enumerate(split):
            yield [*split[:number], [first, *call], *split[number + 1 :]]
        yield [[first], *split]


def cost(calls: Sequence[Sequence[Candidate]], group: MaskGrouping) -> float:
    return sum(
        group.call_share + sum(one.num_rows for one in call) * max(one.computed_share for one in call) for call in calls
    )


def fits(call: Sequence[Candidate], group: MaskGrouping) -> bool:
    return sum(one.num_rows for one in call) <= group.max_rows


@given(EDITS, st.integers(1, 2), st.sampled_from([0.0, 0.1, 0.3, 2.0]), st.sampled_from([2, 4, 16]))
def test_no_other_split_costs_less(shares: list[float], num_rows: int, call_share: float, max_rows: int) -> None:
    group = MaskGrouping(max_rows, call_share)
    members = edits(*shares, num_rows=num_rows)
    ours = [[members[number] for number in call] for call in group(members)]
    allowed = [split for split in partitions(members) if all(fits(call, group) for call in split)]

    assert all(fits(call, group) for call in ours)
    if len(set(shares)) > 1:
        assert cost(ours, group) <= min(cost(split, group) for split in allowed) + 1e-9


@given(MIXED)
def test_everybody_is_in_one_call_and_with_its_own_kind_only(rows: list[tuple[str, int, float, float]]) -> None:
    members = [Candidate(number, *row) for number, row in enumerate(rows)]
    calls = MaskGrouping(4)(members)

    assert sorted(number for call in calls for number in call) == list(range(len(members)))
    assert all(len({members[number].bucket for number in call}) == 1 for call in calls)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 2), st.sampled_from([1.0, 2.0, 9.0])), max_size=9))
def test_requests_without_masks_are_grouped_as_ever(rows: list[tuple[str, int, float]]) -> None:
    members = [Candidate(number, *row) for number, row in enumerate(rows)]

    assert MaskGrouping(4)(members) == Grouping(4)(members)


def test_similar_masks_share_a_call_and_a_large_one_is_left_alone() -> None:
    assert MaskGrouping(16)(edits(0.1, 0.9, 0.12, 0.15)) == [(0, 2, 3), (1,)]


def test_where_calls_are_dear_all_masks_share_one() -> None:
    assert MaskGrouping(16, call_share=9.0)(edits(0.1, 0.9, 0.12)) == [(0, 1, 2)]


def test_the_call_with_the_nearest_deadline_comes_first() -> None:
    late, soon = Candidate(0, "", 2, 9.0, 0.1), Candidate(1, "", 2, 1.0, 0.9)

    assert MaskGrouping(16, call_share=0.1)([late, soon]) == [(1,), (0,)]


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(BadInput, match="max_rows is 1"):
        MaskGrouping(1)
    with pytest.raises(BadInput, match="from zero up"):
        MaskGrouping(16, call_share=-1.0)
