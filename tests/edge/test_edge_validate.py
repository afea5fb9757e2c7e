"""The second opinion: it accepts a plan made by hand, and names what is wrong with every broken copy of it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edge.cells import two_devices
from takeup.edge.model import Allocation, Answer, Instance, Modulation, Reason
from takeup.edge.validate import Violation, first_violation, violation_of_answer


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


# Several cores, releases, values, neighbours, sizes and modulations


def on_two_cores(starts_s: list[float], cycles: list[float]) -> Violation | None:
    """Tasks with these beginnings and lengths, one of a second per cycle."""
    num = len(cycles)
    instance = Instance(
        gains=np.ones((num, num)),
        bits=np.ones(num),
        cycles=np.array(cycles),
        deadlines_s=np.full(num, 100.0),
        radio=two_devices().radio,
        edge_hz=1.0,
        local_hz=10.0,
        chip_constant=1.0,
        num_cores=2,
    )
    allocation = Allocation(
        offloads=np.ones(num, np.bool_),
        owners=np.arange(num),
        powers_w=np.ones(num),
        upload_s=np.ones(num),
        start_s=np.array(starts_s),
        energies_j=np.full(num, 1.1),
    )
    return first_violation(instance, allocation)


def test_a_task_takes_the_core_that_is_free_first() -> None:
    assert on_two_cores([1.0, 2.0, 4.0, 10.0], [20.0, 2.0, 6.0, 3.0]) is None


def test_two_cores_do_not_run_three_tasks() -> None:
    found = on_two_cores([1.0, 2.0, 3.9], [20.0, 2.0, 6.0])

    assert found == Violation("overlap", "device 2 begins before device 1 ends at 4 s")


def released(release_s: float, energy_j: float) -> Violation | None:
    """The first device begins its upload late and sends twice as fast: with a ratio of 3 instead of 1."""
    instance = replace(two_devices(), releases_s=np.array([release_s, 0.0]))
    allocation = replace(
        by_hand(),
        powers_w=np.array([0.75, 0.5]),
        energies_j=np.array([energy_j, 1.2]),
    )
    return first_violation(instance, allocation)


def test_an_upload_lasts_from_the_release_on() -> None:
    late, early = released(1.1, 0.9 * 0.85), released(1.0, 1.0 * 0.85)

    assert early is None
    assert late == Violation("rate", "device 0 sends 1.8 of 2 bits")


def test_energy_is_spent_from_the_release_on() -> None:
    found = released(1.0, 2.0 * 0.85)

    assert found is not None
    assert found.constraint == "energy"


@pytest.mark.parametrize(
    ("owners", "options", "detail"),
    [
        ([0, 1, 0], {"contiguous": True}, "device 0 has subcarriers [0, 2], which are not neighbours"),
        ([0, 0, 1], {"contiguous": True}, None),
        ([0, 0, 1], {"group_sizes": (2,)}, "device 1 has 1 subcarriers, not one of (2,)"),
        ([0, 0, 1], {"group_sizes": (1, 2)}, None),
    ],
)
def test_groups_are_neighbours_of_an_allowed_number(
    owners: list[int], options: dict[str, Any], detail: str | None
) -> None:
    gains = np.array([[4.0, 4.0, 4.0], [2.0, 2.0, 2.0]])
    powers_w = np.array([0.25 if owner == 0 else 0.5 for owner in owners])
    sent_w = [powers_w[np.array(owners) == device].sum() for device in range(2)]
    allocation = replace(
        by_hand(),
        owners=np.array(owners),
        powers_w=powers_w,
        energies_j=np.array([2 * (0.1 + each) for each in sent_w]),
    )

    found = first_violation(replace(two_devices(), gains=gains, **options), allocation)

    assert found == (None if detail is None else Violation("group", detail))


@pytest.mark.parametrize(("ratio", "is_fine"), [(3.0, True), (2.99, False), (1.0, False), (1000.0, True)])
def test_a_modulation_needs_its_ratio_on_every_subcarrier(ratio: float, is_fine: bool) -> None:
    """Two bits in two seconds: half a bit a second and hertz is too little, one bit needs a ratio of three."""
    radio = replace(two_devices().radio, max_power_w=1e6, modulations=(Modulation(0.5, 1.0), Modulation(1.0, 3.0)))
    powers_w = np.array([ratio / 4.0, 3.0 / 2.0])
    allocation = replace(by_hand(), powers_w=powers_w, energies_j=2 * (0.1 + powers_w))

    found = first_violation(replace(two_devices(), radio=radio), allocation)

    assert found == (None if is_fine else Violation("rate", "device 0 sends 1 of 2 bits"))


def test_values_of_tasks_count_for_extra_and_bound() -> None:
    valued = replace(two_devices(), values_j=np.array([5.0, 7.0]))
    right = replace(an_answer(by_hand()), extra_j=12.0, bound_j=46.2)  # 34.1 J saved, 12 J of values

    assert violation_of_answer(valued, right) is None
    wrong = violation_of_answer(valued, replace(right, extra_j=11.9))
    assert wrong == Violation("extra", "the answer claims values of 11.9 J, its devices have 12 J")
    beaten = violation_of_answer(valued, replace(right, bound_j=46.0))
    assert beaten == Violation("bound", "the answer is worth 46.1 J, more than its bound 46 J")
