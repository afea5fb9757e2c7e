"""Changes of iteration times: run lengths against a plain computation, and streams with known truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import t as student

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.training.stragglers.detect.change_points import ChangePoint, ChangePointDetector
from takeup.training.stragglers.detect.kernels import RunPrior, initial_run_lengths, update_run_lengths

PRIOR = RunPrior(mean=0.0, weight=0.1, shape=2.0, rate=2 * 0.03**2, hazard=1 / 250)


def stream(*segments: tuple[int, float], noise: float = 0.02, seed: int = 0) -> Floats:
    """Times of iterations: so many of each level, with scatter."""
    levels = np.concatenate([np.full(number, level) for number, level in segments])
    scattered: Floats = levels * np.exp(noise * np.random.default_rng(seed).standard_normal(len(levels)))
    return scattered


def changes_in(times_s: Floats) -> list[ChangePoint]:
    return ChangePointDetector().see(times_s)


# Run lengths ----------------------------------------------------------------------------------------------------------


def plain_shares(values: Floats) -> Floats:
    """The probability of every run length after these points, written down as it is defined."""
    shares = np.array([1.0])
    for now, value in enumerate(values):
        lengths = np.arange(now + 1)
        seen = [values[now - length : now] for length in lengths]
        weight, shape = PRIOR.weight + lengths, PRIOR.shape + lengths / 2
        mean = np.array([part.sum() / w for part, w in zip(seen, weight, strict=True)])
        spread = [((p - p.mean()) ** 2).sum() if len(p) else 0.0 for p in seen]
        pull = [len(p) * PRIOR.weight / (PRIOR.weight + len(p)) * p.mean() ** 2 if len(p) else 0.0 for p in seen]
        rate = PRIOR.rate + 0.5 * (np.array(spread) + np.array(pull))
        scale = np.sqrt(rate * (weight + 1) / (shape * weight))
        grown = shares * student.pdf(value, 2 * shape, mean, scale)
        shares = np.concatenate([[PRIOR.hazard * grown.sum()], (1 - PRIOR.hazard) * grown])
        shares /= shares.sum()
    return shares


@settings(max_examples=30)
@given(st.lists(st.floats(-0.1, 0.1), min_size=1, max_size=40))
def test_run_lengths_are_those_of_the_definition(values: list[float]) -> None:
    runs = initial_run_lengths(100)
    for value in values:
        update_run_lengths(PRIOR, runs, value)
    number = runs.size[0]
    found = dict(zip(runs.length[:number].tolist(), np.exp(runs.log_share[:number]).tolist(), strict=True))
    wanted = plain_shares(np.array(values))

    assert all(found.get(length, 0.0) == pytest.approx(share, abs=1e-5) for length, share in enumerate(wanted))


def test_the_probability_of_run_length_zero_is_the_hazard_whatever_comes() -> None:
    for values in ([0.0] * 30, [0.0] * 30 + [5.0]):
        assert plain_shares(np.array(values))[0] == pytest.approx(PRIOR.hazard)


def test_memory_is_bounded() -> None:
    runs = initial_run_lengths(8)
    for value in np.random.default_rng(0).normal(size=500):
        update_run_lengths(PRIOR, runs, value)

    assert runs.size[0] <= 8
    assert np.exp(runs.log_share[: runs.size[0]]).sum() == pytest.approx(1.0)


# Streams with known truth ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.15, 1.3, 2.0, 5.0])
def test_onset_and_relief_are_found_where_they_are(factor: float) -> None:
    onset, relief = changes_in(stream((60, 1.0), (40, factor), (60, 1.0)))

    assert (onset.is_onset, relief.is_onset) == (True, False)
    assert abs(onset.began - 60) <= 1
    assert abs(relief.began - 100) <= 1
    assert onset.declared - 60 <= 6
    assert onset.factor == pytest.approx(factor, rel=0.03)


def test_less_than_a_tenth_is_jitter() -> None:
    assert changes_in(stream((100, 1.0), (100, 1.06))) == []


def test_small_drops_add_up() -> None:
    found = changes_in(stream((100, 1.0), (100, 1.07), (100, 1.15)))

    assert [change.is_onset for change in found] == [True]
    assert found[0].began >= 190


def test_what_creeps_is_noticed() -> None:
    creeping = stream((100, 1.0), (400, 1.0)) * np.concatenate([np.ones(100), np.linspace(1.0, 1.3, 400)])

    assert changes_in(creeping)[0].is_onset


def test_single_slow_iterations_are_no_change() -> None:
    times_s = stream((400, 1.0))
    times_s[np.arange(30, 400, 37)] *= 4

    assert changes_in(times_s) == []


def test_two_slow_iterations_among_five_are_no_change() -> None:
    times_s = stream((300, 1.0), noise=0.02)
    for start in range(60, 280, 40):
        times_s[[start, start + 2]] *= 2.5

    assert changes_in(times_s) == []


def test_one_fast_iteration_does_not_hide_a_change() -> None:
    times_s = stream((60, 1.0), (40, 1.4))
    times_s[62] = 1.0

    assert changes_in(times_s)[0].declared - 60 <= 7


def test_bursts_are_followed_up_and_down() -> None:
    found = changes_in(stream((60, 1.0), (14, 1.25), (14, 1.0), (14, 1.25), (14, 1.0), (40, 1.25)))

    assert [change.is_onset for change in found] == [True, False, True, False, True]


def test_noisy_streams_need_more_points() -> None:
    calm, noisy = (changes_in(stream((100, 1.0), (60, 1.6), noise=noise, seed=3))[0] for noise in (0.01, 0.06))

    assert calm.declared - 100 < noisy.declared - 100 <= 12


def test_lingering_noise_is_no_change() -> None:
    random, value = np.random.default_rng(4), 0.0
    logs = []
    for _ in range(5000):
        value = 0.95 * value + 0.004 * random.standard_normal()
        logs.append(value + 0.01 * random.standard_normal())

    assert changes_in(np.exp(np.array(logs))) == []


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.1])
def test_noise_alone_gives_no_alarm_in_ten_thousand_iterations(noise: float) -> None:
    assert changes_in(stream((10_000, 0.3), noise=noise, seed=7)) == []


def test_it_does_not_matter_in_which_portions_times_come() -> None:
    times_s = stream((60, 1.0), (40, 1.5), (60, 1.0), (30, 2.0))
    detector = ChangePointDetector()
    piecewise = [change for time_s in times_s for change in detector.see(np.array([time_s]))]

    assert piecewise == changes_in(times_s)


def test_the_unit_of_time_does_not_matter() -> None:
    times_s = stream((60, 1.0), (40, 1.5))
    ours, theirs = changes_in(times_s), changes_in(times_s * 1000)

    assert [(change.began, change.declared) for change in ours] == [
        (change.began, change.declared) for change in theirs
    ]


def test_nothing_is_declared_before_there_is_something_to_compare_with() -> None:
    assert changes_in(stream((5, 1.0), (5, 3.0))) == []


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_times_must_be_times(bad: float) -> None:
    with pytest.raises(BadInput, match="finite and above zero"):
        changes_in(np.array([1.0, bad]))
