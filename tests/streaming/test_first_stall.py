"""The law of the time to the first stall."""

from __future__ import annotations

import math

import numpy as np
import pytest
from takeup.streaming.policies.first_stall import first_stall_cdf

from streaming.oracles import reference_cell
from takeup.errors import BadInput
from takeup.streaming.chains import chain_of, ps_cell
from takeup.streaming.policies.riccati import RiccatiSolver


def test_a_single_state_stalls_at_one_time_only() -> None:
    chain = ps_cell(0.5, 60.0, 0.02, 1)  # 5 s of buffer last 10 s
    expected = math.exp(-5 / 60) * math.exp(-10 * 0.5 / 60)

    assert first_stall_cdf(chain, 5.0, [9.99, 10.0, 50.0]) == pytest.approx([0.0, expected, expected], abs=1e-6)


@pytest.mark.parametrize("start_s", [0.0, 2.0, 10.0])
def test_it_rises_to_the_probability_of_a_stall(start_s: float) -> None:
    chain = chain_of(reference_cell())
    shares = first_stall_cdf(chain, start_s, [1.0, 10.0, 60.0, 300.0, 1e4])

    assert (np.diff(shares) >= -1e-6).all()
    assert shares[-1] == pytest.approx(RiccatiSolver().solution(chain).stall_probability(start_s), abs=1e-6)


def test_no_stall_comes_before_the_buffer_can_have_run_empty() -> None:
    chain = chain_of(reference_cell())
    fastest = 1 - chain.fill.min()

    assert first_stall_cdf(chain, 5.0, [0.9 * 5.0 / fastest])[0] == pytest.approx(0.0, abs=1e-5)
    assert first_stall_cdf(chain, 5.0, [5.0 / fastest])[0] > 1e-3


@pytest.mark.parametrize("time_s", [0.0, -1.0, math.nan])
def test_a_senseless_time_is_refused(time_s: float) -> None:
    with pytest.raises(BadInput, match="above zero"):
        first_stall_cdf(chain_of(reference_cell()), 5.0, [time_s])
