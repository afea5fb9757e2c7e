"""The kernels against the plain policies: the same plan for `joint`, never a worse one for the search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.cells import instances, two_devices, with_extras
from takeup.edge.model import Answer, Instance, Modulation, Reason
from takeup.edge.policies.joint import METRICS, Joint, JointPlus, Metric, has_kernels
from takeup.edge.traces.generators import paper_setting, radio_tight_setting
from takeup.edge.validate import violation_of_answer


def is_same(one: Answer, other: Answer) -> bool:
    """The same devices, subcarriers, times and powers; the oracles round differently."""
    names = ("powers_w", "upload_s", "start_s", "energies_j")
    return (
        np.array_equal(one.allocation.owners, other.allocation.owners)
        and np.array_equal(one.reasons, other.reasons)
        and one.worth_j == pytest.approx(other.worth_j, rel=1e-9)
        and all(
            getattr(one.allocation, name) == pytest.approx(getattr(other.allocation, name), rel=1e-6, nan_ok=True)
            for name in names
        )
    )


@pytest.mark.parametrize("metric", METRICS)
@given(instance=instances(most_devices=12, most_subcarriers=8))
@settings(max_examples=40, deadline=None)
def test_joint_is_the_same_with_and_without_kernels(metric: Metric, instance: Instance) -> None:
    policy = Joint(metric=metric)

    assert is_same(policy.allocate(instance), policy.allocate_plainly(instance))


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("num_cores", [1, 3])
def test_joint_is_the_same_in_larger_cells(metric: Metric, num_cores: int) -> None:
    random = np.random.default_rng(11)
    instance = with_extras(radio_tight_setting(random, 40, 32, 4e9), random, num_cores)
    policy = Joint(metric=metric)

    assert is_same(policy.allocate(instance), policy.allocate_plainly(instance))


def test_joint_does_by_hand_what_it_should() -> None:
    answer = Joint().allocate(two_devices())

    assert answer.allocation.owners.tolist() == [0, 1]
    assert answer.allocation.start_s.tolist() == [2.5, 3.5]  # equal deadlines: the first to be accepted is first
    assert answer.reasons.tolist() == [Reason.OFFLOADS, Reason.OFFLOADS]


def test_equal_devices_are_taken_in_their_order() -> None:
    instance = replace(
        two_devices(),
        gains=np.full((2, 1), 4.0),
        bits=np.array([2.0, 2.0]),
        cycles=np.array([8.0, 8.0]),
    )

    assert Joint().allocate(instance).allocation.offloads.tolist() == [True, False]
    assert Joint().allocate_plainly(instance).allocation.offloads.tolist() == [True, False]


@given(instance=instances(most_devices=10))
@settings(max_examples=40, deadline=None)
def test_the_search_keeps_every_constraint_and_never_makes_joint_worse(instance: Instance) -> None:
    plus = JointPlus().allocate(instance)

    assert violation_of_answer(instance, plus) is None
    assert plus.worth_j >= Joint().allocate_plainly(instance).worth_j * (1 - 1e-9)


@given(seed=st.integers(0, 2**32 - 1), num_cores=st.integers(2, 4))
@settings(max_examples=15, deadline=None)
def test_the_search_keeps_every_constraint_with_several_cores(seed: int, num_cores: int) -> None:
    random = np.random.default_rng(seed)
    instance = with_extras(radio_tight_setting(random, 12, 8, 2e9), random, num_cores)

    assert violation_of_answer(instance, JointPlus().allocate(instance)) is None


def test_the_kernels_search_at_least_as_well_as_the_plain_search() -> None:
    cells = [radio_tight_setting(np.random.default_rng([21, seed]), 10, 6) for seed in range(6)]
    quick_j = [JointPlus().allocate(cell).worth_j for cell in cells]
    plain_j = [JointPlus().allocate_plainly(cell).worth_j for cell in cells]

    assert sum(quick_j) >= sum(plain_j) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("changes", "known"),
    [({}, True), ({"contiguous": True}, False), ({"group_sizes": (1, 2)}, False)],
)
def test_what_the_kernels_do_not_know_is_answered_plainly(changes: dict[str, object], known: bool) -> None:
    instance = replace(paper_setting(np.random.default_rng(2), 5), **changes)  # type: ignore[arg-type]

    assert has_kernels(instance) is known
    for policy in (Joint(), JointPlus()):
        assert violation_of_answer(instance, policy.allocate(instance)) is None


def test_modulations_are_answered_plainly() -> None:
    instance = paper_setting(np.random.default_rng(2), 5)

    assert not has_kernels(replace(instance, radio=replace(instance.radio, modulations=(Modulation(2.0, 4.0),))))


@pytest.mark.parametrize("policy", [Joint(), JointPlus()])
@pytest.mark.parametrize("num_devices", [0, 1])
def test_tiny_cells_are_no_problem(policy: Joint | JointPlus, num_devices: int) -> None:
    instance = paper_setting(np.random.default_rng(2), num_devices, 1)
    answer = policy.allocate(instance)

    assert violation_of_answer(instance, answer) is None
    assert answer.allocation.num_accepted == num_devices


def test_a_device_that_cannot_end_its_upload_stays_local() -> None:
    instance = replace(two_devices(), bits=np.array([1e6, 1e6]))

    assert Joint().allocate(instance).reasons.tolist() == [Reason.NO_SAVING, Reason.NO_SAVING]


def test_many_devices_for_few_subcarriers_are_answered_alike() -> None:
    instance = paper_setting(np.random.default_rng(0), 20_000, 2)

    assert is_same(Joint().allocate(instance), Joint().allocate_plainly(instance))
