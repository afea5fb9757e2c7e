"""The lone viewer: in a measurement against a plain walk, in a model against the exact solver."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.core.arrays import Floats
from takeup.streaming.capacity_fit import (
    HORIZON_S,
    LONGEST_S,
    MEAN_VIDEO_S,
    SPEEDS,
    THRESHOLDS_S,
    measured_stalls,
    modelled_stalls,
)
from takeup.streaming.chains import stationary_law
from takeup.streaming.model import Capacity, Chain
from takeup.streaming.solvers.fluid import DoublingSolver

# In a measurement -----------------------------------------------------------------------------------------------------


def content_at_first_stall(rates: list[float], begin: int, speed: float, threshold_s: float) -> float:
    """Second by second, with the moments inside a second at which playback starts and stops."""
    content = buffer = 0.0
    playing = False
    for second in range(LONGEST_S):
        arrives = speed * rates[(begin + second) % len(rates)]
        plays_s = 1.0
        if not playing:
            playing = buffer + arrives >= threshold_s
            plays_s = 1 - (threshold_s - buffer) / arrives if playing else 0.0
        before, buffer = buffer, buffer + arrives - plays_s
        if content + arrives > HORIZON_S:
            break
        if buffer < -1e-9:  # what falls short by less is rounding
            return content + arrives * before / (1 - arrives)
        content += arrives
    return math.inf


def plain_stalls(rates: list[float]) -> list[list[float]]:
    return [
        [
            sum(math.exp(-content_at_first_stall(rates, begin, speed, q) / MEAN_VIDEO_S) for begin in range(len(rates)))
            / len(rates)
            for q in THRESHOLDS_S
        ]
        for speed in SPEEDS
    ]


def stalls(rates: list[float]) -> Floats:
    return np.asarray(measured_stalls([np.array(rates)]), dtype=np.float64)


@settings(max_examples=20)
@given(st.lists(st.floats(0.05, 4.0), min_size=2, max_size=40))
def test_the_lone_viewer_is_followed_as_a_plain_walk_follows_him(rates: list[float]) -> None:
    assert stalls(rates) == pytest.approx(np.array(plain_stalls(rates)), abs=1e-9)


def test_outages_are_walked_through() -> None:
    rates = [2.0] * 20 + [0.0] * 15 + [1.0] * 10

    assert stalls(rates) == pytest.approx(np.array(plain_stalls(rates)), abs=1e-9)


def test_a_later_start_or_a_faster_link_stalls_less() -> None:
    found = stalls([0.5] * 70 + [1.5] * 50 + [0.2] * 30 + [2.0] * 60)

    assert (np.diff(found, axis=0) <= 1e-12).all()
    assert (np.diff(found, axis=1) <= 1e-12).all()
    assert found.max() > 0.1


# In a model -----------------------------------------------------------------------------------------------------------


def exact_stalls(capacity: Capacity) -> Floats:
    law = stationary_law(capacity.generator)
    fills = [capacity.levels * speed for speed in SPEEDS]
    chains = [Chain(capacity.generator, fill / MEAN_VIDEO_S, fill, law) for fill in fills]
    solutions = [DoublingSolver().solution(chain) for chain in chains]
    return np.array([[solution.stall_probability(q) for q in THRESHOLDS_S] for solution in solutions])


def capacity_of(levels: Floats, rates: Floats) -> Capacity:
    np.fill_diagonal(rates, 0.0)
    np.fill_diagonal(rates, -rates.sum(axis=1))
    return Capacity(levels, rates)


@given(st.integers(0, 10**6), st.integers(1, 12))
def test_the_model_agrees_with_the_schur_form(seed: int, num_levels: int) -> None:
    rng = np.random.default_rng(seed)
    levels = rng.lognormal(0.0, 1.0, num_levels)
    capacity = capacity_of(levels, rng.exponential(0.1, (num_levels, num_levels)))

    assert modelled_stalls(capacity) == pytest.approx(exact_stalls(capacity), abs=1e-6)


def test_a_level_that_just_plays_is_no_division_by_zero() -> None:
    capacity = capacity_of(np.array([0.5, 1.0, 1.25]), np.full((3, 3), 0.05))  # speeds of 0.8 and 1 play exactly

    assert modelled_stalls(capacity) == pytest.approx(exact_stalls(capacity), abs=1e-4)


def test_levels_that_do_not_lead_to_each_other_have_an_answer() -> None:
    found = modelled_stalls(Capacity(np.array([0.5, 1.5]), np.zeros((2, 2))))

    assert np.isfinite(found).all()
    assert found.max() <= 1
