"""The policies of the paper by hand: what each of them wastes, and the numbers that are known for its cell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from edge.cells import instances, two_devices
from takeup.edge.model import UNASSIGNED, Instance, Reason
from takeup.edge.traces.generators import paper_setting
from takeup.edge.validate import violation_of_answer
from takeup.papers.edge.baselines import COMPARED, PUBLISHED


@pytest.mark.parametrize("name", [policy.name for policy in PUBLISHED])
@given(instance=instances())
@settings(max_examples=15, deadline=None)
def test_every_answer_keeps_every_constraint(name: str, instance: Instance) -> None:
    answer = COMPARED[name].allocate(instance)

    assert violation_of_answer(instance, answer, ignores_cpu=COMPARED[name].ignores_cpu) is None
    assert answer.policy == name


def test_local_leaves_everything_where_it_is() -> None:
    answer = COMPARED["local"].allocate(two_devices())

    assert answer.allocation.energies_j.tolist() == [32.0, 4.0]
    assert answer.saving_j == 0.0
    assert answer.allocation.owners.tolist() == [UNASSIGNED, UNASSIGNED]
    assert {decision.reason for decision in answer.decisions()} == {Reason.NOT_CONSIDERED.text}


@pytest.mark.parametrize("name", ["cpu_first", "joint", "min_group"])
def test_each_device_gets_its_better_subcarrier(name: str) -> None:
    answer = COMPARED[name].allocate(two_devices())

    assert answer.allocation.owners.tolist() == [0, 1]
    assert answer.reasons.tolist() == [Reason.OFFLOADS, Reason.OFFLOADS]


def test_joint_runs_as_late_as_possible_in_the_order_of_deadlines() -> None:
    instance = replace(two_devices(), deadlines_s=np.array([4.0, 3.5]))
    answer = COMPARED["joint"].allocate(instance)

    assert answer.allocation.start_s.tolist() == [3.0, 2.5]


def test_radio_first_wastes_the_subcarrier_of_a_task_that_comes_too_late() -> None:
    instance = replace(two_devices(), edge_hz=2.5)  # 3.2 s and 1.6 s of CPU time until 4 s
    answer = COMPARED["radio_first"].allocate(instance)

    assert answer.allocation.num_accepted == 1
    assert sorted(answer.allocation.owners.tolist()) == [0, 1]
    assert Reason.MISSED_CPU in answer.reasons.tolist()


def test_cpu_first_leaves_a_turn_empty_that_cannot_be_uploaded_for() -> None:
    instance = replace(two_devices(), gains=np.array([[4.0], [2.0]]))
    answer = COMPARED["cpu_first"].allocate(instance)

    assert answer.reasons.tolist() == [Reason.OFFLOADS, Reason.MISSED_RADIO]


def test_joint_keeps_neither_resource_in_vain() -> None:
    instance = replace(two_devices(), edge_hz=2.5)
    answer = COMPARED["joint"].allocate(instance)

    assert answer.reasons.tolist() == [Reason.OFFLOADS, Reason.CROWDED_OUT]
    assert answer.allocation.owners.tolist() == [0, 0]


def test_the_exact_plan_has_two_small_tasks_where_the_greedy_one_has_a_large_one() -> None:
    instance = replace(
        two_devices(),
        gains=np.full((3, 3), 100.0),
        bits=np.full(3, 0.1),
        cycles=np.array([24.0, 14.5, 14.5]),
        deadlines_s=np.array([4.0, 2.0, 4.0]),
        chip_constant=0.1,
        edge_hz=8.0,
        local_hz=100.0,
        releases_s=np.zeros(3),
        values_j=np.zeros(3),
    )
    plain, best = (COMPARED[name].allocate(instance).allocation for name in ("joint", "exact"))

    assert plain.offloads.tolist() == [True, False, False]
    assert best.offloads.tolist() == [False, True, True]


@pytest.fixture(scope="module")
def six_devices() -> dict[str, np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    """Energy and accepted tasks of every policy on the same fifty cells of the paper."""
    cells = [paper_setting(np.random.default_rng([6, seed]), 6) for seed in range(50)]
    answers = {name: [policy.allocate(cell).allocation for cell in cells] for name, policy in COMPARED.items()}
    return {name: np.array([(each.energy_j, each.num_accepted) for each in found]) for name, found in answers.items()}


@pytest.mark.parametrize(
    ("name", "energy_j", "num_accepted"),
    [
        ("local", 4.56, 0.0),
        ("radio_first", 1.46, 3.14),
        ("cpu_first", 1.197, 3.84),
        ("joint", 1.182, 3.84),
        ("exact", 1.17, 3.86),
        ("min_group", 0.718, 4.0),
    ],
)
def test_the_cell_of_the_paper_gives_the_numbers_known_for_it(
    six_devices: dict[str, np.ndarray[tuple[int, int], np.dtype[np.float64]]],
    name: str,
    energy_j: float,
    num_accepted: float,
) -> None:
    found = six_devices[name]
    errors = np.maximum(found.std(axis=0) * np.sqrt(1 / len(found) + 1 / 100), 0.02)  # both are samples

    assert (np.abs(found.mean(axis=0) - [energy_j, num_accepted]) <= 3 * errors).all()


def test_both_resources_together_save_more_than_one_after_the_other(
    six_devices: dict[str, np.ndarray[tuple[int, int], np.dtype[np.float64]]],
) -> None:
    energies_j = {name: float(found[:, 0].mean()) for name, found in six_devices.items()}

    assert energies_j["joint"] < 0.9 * energies_j["radio_first"]
    assert energies_j["exact"] <= energies_j["joint"]
    assert energies_j["min_group"] < energies_j["exact"]
