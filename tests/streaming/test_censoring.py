"""States taken out of a chain: what is collected, and where it goes on, must not change."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming.random_chains import chains
from takeup.errors import BadInput
from takeup.streaming.model import Chain
from takeup.streaming.numerics import censor, censor_transforms, restore_transforms


def test_a_visit_becomes_a_jump() -> None:
    rates = np.array([[-3.0, 2.0, 1.0], [4.0, -5.0, 1.0], [0.0, 1.0, -1.0]])
    left = censor(rates, np.array([True, False, True]), np.ones((3, 1)))

    assert left.rates == pytest.approx(np.array([[-3 + 2 * 4 / 5, 1 + 2 / 5], [4 / 5, -1 + 1 / 5]]))
    assert left.sources[:, 0] == pytest.approx([1 + 2 / 5, 1 + 1 / 5])
    assert left.reach == pytest.approx(np.array([[4 / 5, 1 / 5]]))
    assert left.collected == pytest.approx(np.array([[1 / 5]]))


def test_a_chain_kept_whole_stays_as_it_is() -> None:
    rates = np.array([[-1.0, 1.0], [2.0, -2.0]])
    left = censor(rates, np.array([True, True]))

    assert left.rates is rates
    assert left.restore(np.eye(2)) == pytest.approx(np.eye(2))


@settings(max_examples=40, deadline=None)
@given(chain=chains(), pattern=st.lists(st.booleans(), min_size=6, max_size=6))
def test_expected_totals_survive_censoring(chain: Chain, pattern: list[bool]) -> None:
    kept = np.array([True, *pattern[1 : chain.num_states]])
    sources = np.column_stack([np.ones(chain.num_states), chain.end])
    whole = np.linalg.solve(-chain.killed, sources)  # time until the end, and the certainty that it comes
    left = censor(chain.killed, kept, sources)
    part = np.asarray(np.linalg.solve(-left.rates, left.sources), dtype=np.float64)

    assert part == pytest.approx(whole[kept])
    assert left.restore(part, left.collected) == pytest.approx(whole)
    assert whole[:, 1] == pytest.approx(1.0)


@settings(max_examples=20, deadline=None)
@given(chain=chains(), pattern=st.lists(st.booleans(), min_size=6, max_size=6))
def test_stacked_censoring_is_censoring(chain: Chain, pattern: list[bool]) -> None:
    kept = np.array([True, *pattern[1 : chain.num_states]])
    left = censor(chain.killed, kept)
    rates, reach = censor_transforms(np.stack([chain.killed, 2 * chain.killed]), kept)
    values = np.ones((2, int(kept.sum()), 1))

    assert rates == pytest.approx(np.stack([left.rates, 2 * left.rates]))
    assert restore_transforms(values, kept, reach)[0] == pytest.approx(left.restore(values[0]))


def test_states_without_a_way_out_are_refused() -> None:
    with pytest.raises(BadInput, match="wait forever"):
        censor(np.zeros((2, 2)), np.array([True, False]))
