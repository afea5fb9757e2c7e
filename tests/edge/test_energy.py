"""The closed form of the cheapest upload against searches that know no closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.plain_energy import plain_energy, plain_power, plain_shortest
from takeup.edge.energy import ABSENT, PrefixGroups, water_fill
from takeup.edge.model import Radio

RADIO = Radio(bandwidth_hz=1.0, noise_w_per_hz=1.0, max_power_w=10.0, circuit_power_w=0.5)
LOGS = st.lists(st.floats(-3, 4), min_size=1, max_size=5)


def table(gains: list[float], bits: float = 2.0, radio: Radio = RADIO) -> PrefixGroups:
    return PrefixGroups(np.array(sorted(gains, reverse=True)), np.array(bits), radio)


def test_one_bit_a_second_on_one_subcarrier_takes_one_watt_at_ratio_one() -> None:
    upload = table([1.0], bits=2.0).whole(np.array(2.0))

    assert plain_power([1.0], 2.0, 2.0, RADIO) == pytest.approx(1.0)
    assert upload.energy_j <= 2.0 * (0.5 + 1.0)


def test_the_shortest_upload_takes_all_the_power() -> None:
    assert table([1.0], bits=2.0).shortest_s[0] == pytest.approx(2.0 / math.log2(11.0))


def test_a_limit_below_the_shortest_upload_cannot_be_met() -> None:
    upload = table([1.0]).whole(np.array(0.5))

    assert upload.time_s == math.inf
    assert upload.energy_j == math.inf


def test_without_circuit_power_an_upload_takes_all_the_time_there_is() -> None:
    radio = Radio(1.0, 1.0, 10.0, circuit_power_w=0.0)
    upload = table([1.0], bits=2.0, radio=radio).whole(np.array(8.0))

    assert upload.time_s == 8.0
    assert upload.energy_j == pytest.approx(8.0 * (2**0.25 - 1))


def test_a_poor_second_subcarrier_gets_no_power() -> None:
    powers_w = water_fill(np.array([0.01, 4.0]), 2.0, 2.0, RADIO)

    assert powers_w.tolist() == pytest.approx([0.0, 0.25])


@given(logs=LOGS, bits=st.floats(0.01, 100), slack=st.floats(1.001, 1000), circuit_w=st.sampled_from([0.0, 0.01, 3.0]))
@settings(max_examples=60, deadline=None)
def test_the_closed_form_is_what_a_search_finds(logs: list[float], bits: float, slack: float, circuit_w: float) -> None:
    radio = Radio(1.0, 1.0, 10.0, circuit_w)
    gains = [10.0**log for log in logs]
    limit_s = plain_shortest(gains, bits, radio) * slack
    upload = table(gains, bits, radio).whole(np.array(limit_s))

    assert upload.energy_j == pytest.approx(plain_energy(gains, bits, limit_s, radio), rel=1e-6)
    assert upload.time_s <= limit_s


@given(logs=LOGS, bits=st.floats(0.01, 100))
@settings(max_examples=60, deadline=None)
def test_the_shortest_upload_is_what_a_bisection_finds(logs: list[float], bits: float) -> None:
    gains = [10.0**log for log in logs]

    assert table(gains, bits).shortest_s[-1] == pytest.approx(plain_shortest(gains, bits, RADIO), rel=1e-6)


@given(logs=LOGS, limit_s=st.floats(0.01, 100))
def test_prefixes_are_the_wholes_of_their_subcarriers(logs: list[float], limit_s: float) -> None:
    gains = sorted((10.0**log for log in logs), reverse=True)
    wholes = [float(table(gains[: k + 1]).whole(np.array(limit_s)).energy_j) for k in range(len(gains))]

    assert table(gains).prefixes(np.array(limit_s)).energy_j.tolist() == pytest.approx(wholes, rel=1e-9)


@given(logs=LOGS, limit_s=st.floats(0.01, 100), num_absent=st.integers(1, 3))
def test_absent_subcarriers_change_nothing(logs: list[float], limit_s: float, num_absent: int) -> None:
    gains = [10.0**log for log in logs]
    padded = table([*gains, *[ABSENT] * num_absent]).whole(np.array(limit_s))

    assert padded.energy_j == pytest.approx(float(table(gains).whole(np.array(limit_s)).energy_j), rel=1e-9)


@given(logs=LOGS, limits=st.lists(st.floats(0.01, 100), min_size=2, max_size=6))
def test_more_time_and_more_subcarriers_never_cost_more(logs: list[float], limits: list[float]) -> None:
    gains = np.sort([10.0**log for log in logs])[::-1]
    limits_s = np.sort(limits)
    costs_j = PrefixGroups(gains[None], np.array([2.0]), RADIO).prefixes(limits_s).energy_j

    finite = np.where(np.isfinite(costs_j), costs_j, 1e300)
    assert (np.diff(finite, axis=0) <= 1e-9 * finite[:-1]).all()
    assert (np.diff(finite, axis=1) <= 1e-9 * finite[:, :-1]).all()


@given(logs=LOGS, bits=st.floats(0.1, 10), time_s=st.floats(0.5, 10))
def test_water_filling_sends_the_bits_with_the_least_power(logs: list[float], bits: float, time_s: float) -> None:
    gains = np.array([10.0**log for log in logs])
    powers_w = water_fill(gains, bits, time_s, RADIO)

    assert time_s * np.log2(1 + powers_w * gains).sum() == pytest.approx(bits, rel=1e-9)
    assert powers_w.sum() == pytest.approx(plain_power(gains.tolist(), bits, time_s, RADIO), rel=1e-9, abs=1e-12)


def test_many_devices_at_once_are_the_same_as_one_by_one() -> None:
    random = np.random.default_rng(1)
    gains = -np.sort(-random.exponential(size=(50, 4)), axis=1)
    bits, limits_s = random.uniform(1, 5, 50), random.uniform(1, 20, 50)
    together = PrefixGroups(gains, bits, RADIO).prefixes(limits_s)
    alone = [PrefixGroups(gains[i], bits[i], RADIO).prefixes(limits_s[i]).energy_j for i in range(50)]

    assert np.array_equal(together.energy_j, np.stack(alone))
