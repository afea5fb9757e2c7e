"""The oracle of the kernels against the closed form of the package and against a search without any."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

from edge.plain_energy import plain_energy
from takeup.core.arrays import Floats
from takeup.edge.energy import PrefixGroups, water_fill
from takeup.edge.model import Radio
from takeup.edge.solvers.compiled.arrays import CHANNEL, DEVICE, CellArrays
from takeup.edge.solvers.compiled.plans import cheapest, upload_cost, water_level

NUMBERS = st.floats(-3.0, 3.0).map(lambda exponent: 10.0**exponent)


def cell_with(ratios: list[float], bits: float, radio: Radio) -> CellArrays:
    """One device, whose subcarriers are numbered from the best on."""
    devices, channels = np.zeros(1, DEVICE), np.zeros((1, len(ratios)), CHANNEL)
    devices["bits_per_hz"] = bits / radio.bandwidth_hz
    channels["log"], channels["inverse"] = np.log2(ratios), 1 / np.array(ratios)
    return CellArrays(radio.max_power_w, radio.circuit_power_w, 1.0, devices, channels, np.zeros((0, 0), np.int64))


def _ask(cell: CellArrays, window_s: float, found: Floats) -> None:
    """The cost within the window, the cheapest upload (time and cost), and the water of an upload of the window."""
    size = cell.channels.shape[1]
    group = np.arange(size)
    found[0] = upload_cost(cell, 0, group, size, window_s)
    found[1], found[2] = cheapest(cell, 0, group, size)
    found[3], found[4] = water_level(cell, 0, group, size, window_s)


# not kept on disk, where it would outlive the oracle
ask = cast(Callable[[CellArrays, float, Floats], None], njit(_ask))


def asked(ratios: list[float], bits: float, window_s: float, radio: Radio) -> list[float]:
    found = np.zeros(5)
    ask(cell_with(ratios, bits, radio), window_s, found)
    return [float(each) for each in found]


@given(
    ratios=st.lists(NUMBERS, min_size=1, max_size=6),
    bits=NUMBERS,
    window_s=NUMBERS,
    max_power_w=NUMBERS,
    circuit_power_w=st.just(0.0) | NUMBERS,
)
@settings(max_examples=300, deadline=None)
def test_costs_are_those_of_the_closed_form(
    ratios: list[float], bits: float, window_s: float, max_power_w: float, circuit_power_w: float
) -> None:
    radio = Radio(1.0, 1.0, max_power_w, circuit_power_w)
    ranked = sorted(ratios, reverse=True)
    table = PrefixGroups(np.array(ranked), np.array(bits), radio)
    expected_j = float(table.whole(np.array(window_s)).energy_j)
    cost_j = asked(ranked, bits, window_s, radio)[0]

    if not math.isclose(float(table.shortest_s[-1]), window_s, rel_tol=1e-9):  # there rounding decides
        assert cost_j == pytest.approx(expected_j, rel=1e-8)


@given(ratios=st.lists(NUMBERS, min_size=1, max_size=3), bits=NUMBERS, window_s=NUMBERS)
@settings(max_examples=15, deadline=None)
def test_costs_are_those_of_a_search(ratios: list[float], bits: float, window_s: float) -> None:
    radio = Radio(1.0, 1.0, 10.0, 0.3)
    ranked = sorted(ratios, reverse=True)

    assert asked(ranked, bits, window_s, radio)[0] == pytest.approx(
        plain_energy(ranked, bits, window_s, radio), rel=1e-6
    )


@given(ratios=st.lists(NUMBERS, min_size=1, max_size=6), bits=NUMBERS)
@settings(max_examples=100, deadline=None)
def test_the_cheapest_time_is_that_of_the_closed_form(ratios: list[float], bits: float) -> None:
    radio = Radio(1.0, 1.0, 5.0, 0.2)
    ranked = sorted(ratios, reverse=True)
    table = PrefixGroups(np.array(ranked), np.array(bits), radio)
    _, time_s, energy_j, _, _ = asked(ranked, bits, 1.0, radio)

    assert time_s == pytest.approx(float(np.maximum(table.cheapest_s, table.shortest_s)[-1]), rel=1e-7)
    assert energy_j == pytest.approx(float(table.whole(np.array(np.inf)).energy_j), rel=1e-9)


def test_without_circuit_power_longer_is_always_cheaper() -> None:
    assert asked([3.0, 1.0], 2.0, 1.0, Radio(1.0, 1.0, 100.0))[1] == math.inf


@given(ratios=st.lists(NUMBERS, min_size=1, max_size=6), bits=st.floats(0.1, 20.0))
@settings(max_examples=50, deadline=None)
def test_the_water_stands_where_the_least_powers_say(ratios: list[float], bits: float) -> None:
    radio = Radio(1.0, 1.0, 5.0, 0.2)
    ranked = sorted(ratios, reverse=True)
    powers_w = water_fill(np.array(ranked), bits, 1.0, radio)
    _, _, _, level, power_w = asked(ranked, bits, 1.0, radio)

    assert power_w == pytest.approx(float(powers_w.sum()), rel=1e-9, abs=1e-12)
    assert level == pytest.approx(float(powers_w[0]) + 1 / ranked[0], rel=1e-9)
