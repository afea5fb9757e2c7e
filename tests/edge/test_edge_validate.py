"""The second opinion: it accepts a plan made by hand, and names what is wrong with every broken copy of it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from edge.cells import two_devices
from takeup.edge.model import Allocation, Answer, Reason
from takeup.edge.validate import first_violation, violation_of_answer


def by_hand() -> Allocation:
    """Each device takes a second per bit at a ratio of 1: 0.25 W on the first subcarrier, 0.5 W on the second."""
    return Allocation(
        offloads=np.array([True, True]),
        owners=np.array([0, 1]),
        powers_w=np.array([0.25, 0.5]),
        upload_s=np.array([2.0, 2.0]),
        start_s=np.array([2.5, 3.5]),
        energies_j=np.array([2 * 0.35, 2 * 0.6]),
    )


def an_answer(allocation: Allocation) -> Answer:
    return Answer("hand", allocation, 36.0 - allocation.energy_j, np.array([0, 0], np.int8), bound_j=36.0)


def test_a_plan_that_keeps_every_promise_is_accepted() -> None:
    assert first_violation(two_devices(), by_hand()) is None
    assert violation_of_answer(two_devices(), an_answer(by_hand())) is None


@pytest.mark.parametrize(
    ("change", "constraint", "detail"),
    [
        ({"owners": np.array([0, 1, 1])}, "shape", "owners has shape (3,), not (2,)"),
        ({"start_s": np.zeros(3)}, "shape", "start_s has shape (3,), not (2,)"),
        ({"owners": np.array([0, 7])}, "owner", "subcarrier 1 belongs to device 7, which does not exist"),
        ({"owners": np.array([0, -2])}, "owner", "subcarrier 1 belongs to device -2, which does not exist"),
        ({"owners": np.array([0, 0])}, "owner", "device 1 offloads without a subcarrier"),
        ({"owners": np.array([0, -1])}, "owner", "subcarrier 1 carries power, but its owner -1 does not offload"),
        ({"offloads": np.array([True, False])}, "owner", "subcarrier 1 carries power, but its owner 1 does not"),
        ({"powers_w": np.array([0.25, -0.1])}, "power", "subcarrier 1 carries -0.1 W"),
        ({"powers_w": np.array([0.25, math.nan])}, "power", "subcarrier 1 carries nan W"),
        ({"powers_w": np.array([11.0, 0.5])}, "power", "device 0 sends with 11 W, more than 10 W"),
        ({"powers_w": np.array([0.25, 0.4])}, "rate", "device 1 sends"),
        ({"upload_s": np.array([1.9, 2.0])}, "rate", "device 0 sends 1.9 of 2 bits"),
        ({"upload_s": np.array([2.0, math.nan])}, "rate", "device 1 sends nan"),
        (
            {"upload_s": np.array([2.6, 2.0])},
            "upload",
            "device 0 uploads from 0 s until 2.6 s, its core begins at 2.5 s",
        ),
        ({"start_s": np.array([math.nan, 3.5])}, "upload", "its core begins at nan s"),
        ({"start_s": np.array([2.5, 3.6])}, "deadline", "device 1 is done at 4.1 s, due at 4 s"),
        ({"start_s": np.array([2.5, 3.4])}, "overlap", "device 1 begins before device 0 ends at 3.5 s"),
        ({"start_s": np.array([2.1, 2.0])}, "overlap", "device 0 begins before device 1 ends at 2.5 s"),
        ({"energies_j": np.array([0.6, 1.2])}, "energy", "device 0 states 0.6 J, its times and powers make 0.7 J"),
    ],
)
def test_the_first_broken_constraint_is_named(change: dict[str, object], constraint: str, detail: str) -> None:
    found = first_violation(two_devices(), replace(by_hand(), **change))  # type: ignore[arg-type]

    assert found is not None
    assert found.constraint == constraint
    assert detail in found.detail


def test_tasks_may_overlap_where_the_cpu_is_ignored() -> None:
    overlapping = replace(by_hand(), start_s=np.array([3.0, 3.0]))
    found = first_violation(two_devices(), overlapping)

    assert found is not None
    assert found.constraint == "overlap"
    assert first_violation(two_devices(), overlapping, ignores_cpu=True) is None


def test_a_subcarrier_may_be_held_without_being_used() -> None:
    one = replace(
        by_hand(),
        offloads=np.array([True, False]),
        powers_w=np.array([0.25, 0.0]),
        energies_j=np.array([0.7, 4.0]),
    )

    assert first_violation(two_devices(), one) is None


def test_a_device_that_runs_its_task_itself_pays_for_that() -> None:
    nobody = Allocation(
        np.zeros(2, np.bool_),
        np.array([-1, -1]),
        np.zeros(2),
        np.full(2, math.nan),
        np.full(2, math.nan),
        np.array([32.0, 3.0]),
    )
    found = first_violation(two_devices(), nobody)

    assert found is not None
    assert found.constraint == "energy"
    assert "device 1 states 3 J" in found.detail


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ({"saving_j": 36.0}, "saving"),
        ({"saving_j": math.nan}, "saving"),
        ({"bound_j": 30.0}, "bound"),
        ({"reasons": np.array([Reason.OFFLOADS, Reason.NO_SAVING], np.int8)}, "reason"),
    ],
)
def test_an_answer_that_contradicts_its_allocation_is_refused(change: dict[str, object], constraint: str) -> None:
    found = violation_of_answer(two_devices(), replace(an_answer(by_hand()), **change))  # type: ignore[arg-type]

    assert found is not None
    assert found.constraint == constraint


def test_the_allocation_of_an_answer_is_checked_first() -> None:
    broken = replace(an_answer(by_hand()), allocation=replace(by_hand(), start_s=np.zeros(2)))
    found = violation_of_answer(two_devices(), broken)

    assert found is not None
    assert found.constraint == "upload"
