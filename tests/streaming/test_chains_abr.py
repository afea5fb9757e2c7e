"""Adaptive bit rate that follows the fair share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from streaming.oracles import reference_cell
from takeup.errors import BadInput
from takeup.streaming.chains import (
    abr_by_state,
    bitrates_by_users,
    chain_of,
    fair_share_rule,
    mean_bitrate,
    num_switches,
)
from takeup.streaming.solvers.riccati import RiccatiSolver

LADDER = (200e3, 360e3, 700e3, 1.4e6)


def test_a_ladder_of_one_level_is_the_plain_cell() -> None:
    found, expected = abr_by_state(reference_cell(), [360e3]), chain_of(reference_cell())

    assert found.generator == pytest.approx(expected.generator)
    assert found.fill == pytest.approx(expected.fill)
    assert found.initial == pytest.approx(expected.initial)


def test_the_level_goes_down_with_the_number_of_users() -> None:
    bitrates = bitrates_by_users(reference_cell(), LADDER)

    assert bitrates.tolist() == [1.4e6, 1.4e6, 700e3, 700e3, 360e3, 360e3, 360e3, 200e3, 200e3, 200e3]
    assert abr_by_state(reference_cell(), LADDER).fill == pytest.approx(2.8e6 / np.arange(1, 11) / bitrates)


def test_adaptation_avoids_stalls_at_the_price_of_quality() -> None:
    adaptive = abr_by_state(reference_cell(), LADDER)
    fixed = abr_by_state(reference_cell(), [700e3])

    assert RiccatiSolver().solution(adaptive).stall_probability(5.0) < 1e-6
    assert RiccatiSolver().solution(fixed).stall_probability(5.0) > 0.3
    assert 200e3 < mean_bitrate(adaptive, bitrates_by_users(reference_cell(), LADDER)) < 1.4e6


def test_one_user_at_a_time_never_switches() -> None:
    alone = abr_by_state(reference_cell(max_users=1), LADDER)
    shared = abr_by_state(reference_cell(), LADDER)

    assert num_switches(alone, bitrates_by_users(reference_cell(max_users=1), LADDER)) == 0
    assert num_switches(shared, bitrates_by_users(reference_cell(), LADDER)) > 0.5
    assert num_switches(shared, np.full(10, 360e3)) == 0


def test_a_rule_of_ones_own_is_used() -> None:
    def cautious(share_bps: float, ladder_bps: Sequence[float]) -> float:
        return fair_share_rule(share_bps / 2, ladder_bps)

    assert (bitrates_by_users(reference_cell(), LADDER, cautious) <= bitrates_by_users(reference_cell(), LADDER)).all()


@pytest.mark.parametrize("ladder", [[], [1e6, 5e5], [0.0, 1e6], [1e6, 1e6], [1e6, math.inf]])
def test_a_senseless_ladder_is_refused(ladder: list[float]) -> None:
    with pytest.raises(BadInput, match="rising order"):
        abr_by_state(reference_cell(), ladder)
