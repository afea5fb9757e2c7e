"""Passes over links: nobody twice in one, every link in one, and never more than one beyond the busiest end."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.errors import BadInput
from takeup.training.stragglers.locate.edge_colouring import Pair, link_passes, ring_links

links_of_any_graph = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)).filter(lambda pair: pair[0] != pair[1]))


def degree(links: list[Pair]) -> int:
    """Of the busiest end."""
    different = {(min(link), max(link)) for link in links}
    return max(Counter(end for link in different for end in link).values(), default=0)


@given(links_of_any_graph)
def test_every_link_is_in_one_pass_and_no_end_twice_in_any(links: list[Pair]) -> None:
    passes = link_passes(links)

    assert sorted(link for each in passes for link in each) == sorted({(min(link), max(link)) for link in links})
    assert all(max(Counter(end for link in each for end in link).values()) == 1 for each in passes)


@given(links_of_any_graph)
def test_one_pass_more_than_the_busiest_end_has_links_is_always_enough(links: list[Pair]) -> None:
    assert len(link_passes(links)) <= degree(links) + 1


@pytest.mark.parametrize(
    ("num_ranks", "num_passes"), [(1, 0), (2, 1), (3, 3), (4, 2), (7, 3), (8, 2), (501, 3), (512, 2)]
)
def test_a_ring_takes_two_passes_or_three(num_ranks: int, num_passes: int) -> None:
    assert len(link_passes(ring_links(range(num_ranks)))) == num_passes


@pytest.mark.parametrize("num_ranks", [2, 3, 15, 64, 511])
def test_a_binary_tree_takes_at_most_three_passes(num_ranks: int) -> None:
    tree = [((child - 1) // 2, child) for child in range(1, num_ranks)]

    assert len(link_passes(tree)) <= 3


def test_all_pairs_of_an_even_number_take_no_more_than_their_number() -> None:
    pairs = [(one, other) for one in range(16) for other in range(one)]

    assert len(link_passes(pairs)) <= 16


def test_both_directions_of_a_link_are_one_test() -> None:
    assert link_passes([(1, 0), (0, 1)]) == [[(0, 1)]]


def test_a_link_to_itself_is_refused() -> None:
    with pytest.raises(BadInput, match="a link from 3 to itself cannot be tested"):
        link_passes([(3, 3)])
