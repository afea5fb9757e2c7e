"""What instances accept, refuse and derive, and what answers say."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.cells import two_devices
from takeup.edge.model import Allocation, Answer, Instance, Radio, Reason
from takeup.edge.planning import solve
from takeup.edge.traces.files import load_instance, save_instance
from takeup.edge.traces.generators import paper_setting
from takeup.errors import BadInput


def test_local_energy_is_that_of_the_slowest_clock_in_time() -> None:
    instance = two_devices()

    assert instance.local_j.tolist() == [8 * 2.0**2, 4 * 1.0**2]
    assert instance.run_s.tolist() == [1.0, 0.5]


def test_a_device_that_is_too_slow_runs_at_full_speed_and_pays_the_penalty() -> None:
    instance = replace(two_devices(), local_hz=1.5, miss_penalty_j=100.0)

    assert instance.too_slow.tolist() == [True, False]
    assert instance.local_j.tolist() == [8 * 1.5**2 + 100, 4.0]


def test_gains_are_related_to_the_noise_of_one_subcarrier() -> None:
    instance = replace(two_devices(), radio=Radio(2.0, 0.25, 1.0))

    assert instance.gain_to_noise.tolist() == [[8.0, 2.0], [4.0, 4.0]]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("bits", np.array([2.0, -1.0]), r"bits\[1\] is -1; every entry of bits must be a finite number above zero"),
        ("bits", np.array([0.0, 1.0]), r"bits\[0\] is 0"),
        ("gains", np.array([[1.0, -1.0], [1.0, 1.0]]), r"gains\[0, 1\] is -1"),
        ("gains", np.array([[1.0, 1.0], [math.nan, 1.0]]), r"gains\[1, 0\] is nan"),
        ("gains", np.array([[1.0, math.inf], [1.0, 1.0]]), r"gains\[0, 1\] is inf"),
        ("gains", np.zeros((2, 0)), "there is no subcarrier; give at least one"),
        ("gains", np.ones(2), "gains have 1 dimensions"),
        ("gains", np.ones((3, 2)), r"bits has shape \(2,\), gains are for 3 devices"),
        ("deadlines_s", np.array([1.0, 0.0]), r"deadlines_s\[1\] is 0"),
        ("deadlines_s", np.ones(3), r"deadlines_s has shape \(3,\)"),
        ("cycles", np.ones((2, 1)), r"cycles has shape \(2, 1\)"),
        ("cycles", ["a", "b"], "cycles cannot be read as numbers"),
        ("edge_hz", 0.0, "edge_hz is 0"),
        ("local_hz", math.nan, "local_hz is nan"),
        ("chip_constant", -1.0, "chip_constant is -1"),
        ("miss_penalty_j", -1.0, "miss_penalty_j is -1; make it a finite number of zero or more"),
    ],
)
def test_a_senseless_instance_is_refused(field: str, value: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        replace(two_devices(), **{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["bandwidth_hz", "noise_w_per_hz", "max_power_w", "circuit_power_w"])
def test_a_senseless_radio_is_refused(field: str) -> None:
    with pytest.raises(BadInput, match=f"{field} is -1"):
        replace(two_devices().radio, **{field: -1.0})  # type: ignore[arg-type]


def test_an_instance_does_not_change_with_the_arrays_it_was_made_of() -> None:
    bits = np.array([2.0, 2.0])
    instance = replace(two_devices(), bits=bits)
    bits[0] = 99.0

    assert instance.bits[0] == 2.0
    with pytest.raises(ValueError, match="read-only"):
        instance.bits[0] = 1.0


def test_a_million_devices_make_an_instance() -> None:
    many = np.ones(1_000_000)
    instance = Instance(many[:, None], many, many, many, Radio(1.0, 1.0, 1.0), 1.0, 1.0, 1.0)

    assert instance.num_devices == 1_000_000
    assert instance.local_j.sum() == 1_000_000


def an_answer(saving_j: float, bound_j: float | None) -> Answer:
    nan = np.full(2, math.nan)
    allocation = Allocation(np.array([True, False]), np.array([0, -1]), np.ones(2), nan, nan, np.array([1.0, 2.0]))
    return Answer("hand", allocation, saving_j, np.array([Reason.OFFLOADS, Reason.CROWDED_OUT], np.int8), bound_j)


def test_the_gap_is_the_share_of_the_bound_that_is_missing() -> None:
    assert an_answer(3.0, 4.0).gap_share == 0.25
    assert an_answer(4.0 + 1e-12, 4.0).gap_share == 0.0
    assert an_answer(0.0, 0.0).gap_share == 0.0
    assert an_answer(3.0, None).gap_share is None


def test_every_device_gets_a_decision_with_its_reason() -> None:
    first, second = an_answer(3.0, None).decisions()

    assert (first.device, first.offload) == (0, True)
    assert (second.device, second.offload) == (1, False)
    assert second.reason == "other devices save more with the subcarriers and the CPU time it needs"
    assert len({reason.text for reason in Reason}) == len(Reason)


def test_an_allocation_sums_up_what_was_given_and_spent() -> None:
    allocation = an_answer(3.0, None).allocation

    assert allocation.num_accepted == 1
    assert allocation.energy_j == 3.0
    assert allocation.group(0).tolist() == [0]


def test_a_task_without_a_deadline_costs_nothing_and_stays(tmp_path: Path) -> None:
    plain = paper_setting(np.random.default_rng(3), 6)
    deadlines_s = plain.deadlines_s.copy()
    deadlines_s[2] = np.inf
    instance = replace(plain, deadlines_s=deadlines_s, values_j=np.full(6, 10.0))
    save_instance(tmp_path / "cell.json", instance)

    assert instance.best_effort.tolist() == [False, False, True, False, False, False]
    assert instance.local_j[2] == 0.0
    assert not solve(instance, budget_ms=0).allocation.offloads[2]
    assert load_instance(tmp_path / "cell.json").best_effort.tolist() == instance.best_effort.tolist()
    assert replace(instance, num_cores=2).best_effort[2]


PER_DEVICE = ("bits", "cycles", "deadlines_s", "releases_s", "values_j")


def test_other_devices_take_the_place_of_those_with_deadlines() -> None:
    plain, three = two_devices(), np.ones((3, 2))
    columns: dict[str, Any] = {name: np.ones(3) for name in PER_DEVICE} | {"releases_s": np.zeros(3)}

    assert replace(plain, gains=three, **columns).best_effort.tolist() == [False, False, False]
    marked = replace(plain, deadlines_s=np.array([4.0, np.inf]))
    with pytest.raises(BadInput, match=r"best_effort has shape \(2,\), gains are for 3 devices"):
        replace(marked, gains=three, **columns)


def test_a_tensor_of_coefficients_becomes_blocks() -> None:
    fields = {name: getattr(two_devices(), name) for name in ("bits", "cycles", "deadlines_s", "radio", "edge_hz")}
    channel = np.array([[[1 + 1j, 1, 2, 0], [0, 1, 0, 2]], [[1, 1, 1, 1], [1, 1, 1, 1]]])
    instance = Instance.from_gains(channel, 2, local_hz=10.0, chip_constant=1.0, **fields)

    assert instance.gains.tolist() == [[2.0, 4.0], [2.0, 2.0]]
    with pytest.raises(BadInput, match="no blocks of 3 subcarriers"):
        Instance.from_gains(channel, 3, local_hz=10.0, chip_constant=1.0, **fields)
