"""Every policy: checked by the validator, never better than brute force, and as good as it was measured to be."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.cells import instances, two_devices
from edge.plain_energy import plain_best_saving
from takeup.edge.model import UNASSIGNED, Instance, Reason
from takeup.edge.policies import POLICIES, find_policy
from takeup.edge.policies.joint import METRICS, Joint, JointPlus
from takeup.edge.solvers.bounds import MOST_CHOICES, relax, saving_bound
from takeup.edge.solvers.partial_plan import PartialPlan, SiteQuantities, assign_free_subcarriers, exchange_subcarriers
from takeup.edge.traces.generators import paper_setting, radio_tight_setting
from takeup.edge.validate import violation_of_answer
from takeup.errors import UnknownName

CONTENDERS = [name for name, policy in POLICIES.items() if not policy.ignores_cpu]


def tiny(seed: int, is_paper: bool) -> Instance:
    random = np.random.default_rng(seed)
    return paper_setting(random, 3, 2) if is_paper else radio_tight_setting(random, 3, 2, 2e9)


@pytest.mark.parametrize("name", POLICIES)
@given(instance=instances())
@settings(max_examples=25, deadline=None)
def test_every_answer_keeps_every_constraint(name: str, instance: Instance) -> None:
    policy = find_policy(name)
    answer = policy.allocate(instance)

    assert violation_of_answer(instance, answer, ignores_cpu=policy.ignores_cpu) is None
    assert answer.policy == name
    assert answer.worth_j >= 0


@pytest.mark.parametrize("metric", METRICS)
@given(instance=instances())
@settings(max_examples=10, deadline=None)
def test_every_metric_keeps_every_constraint(metric: str, instance: Instance) -> None:
    answer = Joint(metric=metric).allocate(instance)  # type: ignore[arg-type]

    assert violation_of_answer(instance, answer) is None


@given(seed=st.integers(0, 1000), is_paper=st.booleans())
@settings(max_examples=8, deadline=None)
def test_nothing_beats_brute_force_and_no_bound_is_below_it(seed: int, is_paper: bool) -> None:
    instance = tiny(seed, is_paper)
    best_j = plain_best_saving(instance)
    savings_j = [POLICIES[name].allocate(instance).saving_j for name in CONTENDERS]
    bound_j = saving_bound(instance)

    assert max(savings_j) <= best_j * (1 + 1e-6) + 1e-12
    assert bound_j is not None
    assert bound_j >= best_j * (1 - 1e-6)


@given(instance=instances(most_devices=10))
@settings(max_examples=20, deadline=None)
def test_the_search_never_makes_joint_worse(instance: Instance) -> None:
    joint, plus = Joint().allocate(instance), JointPlus().allocate(instance)

    assert plus.worth_j >= joint.worth_j * (1 - 1e-9)
    assert plus.gap_share is None


@pytest.mark.parametrize("name", POLICIES)
def test_the_same_instance_gets_the_same_answer(name: str) -> None:
    instance = radio_tight_setting(np.random.default_rng(3), 8, 6)
    first, second = (find_policy(name).allocate(instance) for _ in range(2))

    assert first.saving_j == second.saving_j
    assert np.array_equal(first.allocation.owners, second.allocation.owners)


# By hand --------------------------------------------------------------------------------------------------------------


def test_local_leaves_everything_where_it_is() -> None:
    answer = find_policy("local").allocate(two_devices())

    assert answer.allocation.energies_j.tolist() == [32.0, 4.0]
    assert answer.saving_j == 0.0
    assert answer.allocation.owners.tolist() == [UNASSIGNED, UNASSIGNED]
    assert {decision.reason for decision in answer.decisions()} == {Reason.NOT_CONSIDERED.text}


@pytest.mark.parametrize("name", ["cpu_first", "joint", "joint_plus", "min_group"])
def test_each_device_gets_its_better_subcarrier(name: str) -> None:
    answer = find_policy(name).allocate(two_devices())

    assert answer.allocation.owners.tolist() == [0, 1]
    assert answer.reasons.tolist() == [Reason.OFFLOADS, Reason.OFFLOADS]


def test_joint_runs_as_late_as_possible_in_the_order_of_deadlines() -> None:
    instance = replace(two_devices(), deadlines_s=np.array([4.0, 3.5]))
    answer = find_policy("joint").allocate(instance)

    assert answer.allocation.start_s.tolist() == [3.0, 2.5]


def test_radio_first_wastes_the_subcarrier_of_a_task_that_comes_too_late() -> None:
    instance = replace(two_devices(), edge_hz=2.5)  # 3.2 s and 1.6 s of CPU time until 4 s
    answer = find_policy("radio_first").allocate(instance)

    assert answer.allocation.num_accepted == 1
    assert sorted(answer.allocation.owners.tolist()) == [0, 1]
    assert Reason.MISSED_CPU in answer.reasons.tolist()


def test_cpu_first_leaves_a_turn_empty_that_cannot_be_uploaded_for() -> None:
    instance = replace(two_devices(), gains=np.array([[4.0], [2.0]]))
    answer = find_policy("cpu_first").allocate(instance)

    assert answer.reasons.tolist() == [Reason.OFFLOADS, Reason.MISSED_RADIO]


def test_joint_keeps_neither_resource_in_vain() -> None:
    instance = replace(two_devices(), edge_hz=2.5)
    answer = find_policy("joint").allocate(instance)

    assert answer.reasons.tolist() == [Reason.OFFLOADS, Reason.CROWDED_OUT]
    assert answer.allocation.owners.tolist() == [0, 0]


def test_a_device_whose_upload_costs_more_than_its_run_stays_local() -> None:
    instance = replace(two_devices(), chip_constant=1e-6)
    answer = JointPlus().allocate(instance)

    assert answer.reasons.tolist() == [Reason.NO_SAVING, Reason.NO_SAVING]
    assert saving_bound(instance) == 0.0
    assert replace(answer, bound_j=0.0).gap_share == 0.0


def test_the_search_replaces_one_large_task_by_two_small_ones() -> None:
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
    plain, plus = (find_policy(name).allocate(instance).allocation for name in ("joint", "joint_plus"))

    assert plain.offloads.tolist() == [True, False, False]
    assert plus.offloads.tolist() == [False, True, True]


def test_free_subcarriers_go_where_they_help_most() -> None:
    plan = PartialPlan(SiteQuantities(two_devices()), {0: [0]}, {0: 3.0})
    assign_free_subcarriers(plan)

    assert plan.groups == {0: [0]}  # at this rate the second one is not worth any power

    hurried = PartialPlan(SiteQuantities(two_devices()), {0: [0]}, {0: 0.5})
    assign_free_subcarriers(hurried)

    assert hurried.groups == {0: [0, 1]}


def test_subcarriers_change_places_where_both_are_better_off() -> None:
    plan = PartialPlan(SiteQuantities(two_devices()), {0: [1], 1: [0]}, {0: 3.0, 1: 3.0})
    before_j = plan.worth_j()
    exchange_subcarriers(plan)

    assert plan.groups == {0: [0], 1: [1]}
    assert plan.worth_j() > before_j


@given(instance=instances())
@settings(max_examples=25, deadline=None)
def test_exchanges_only_make_plans_better_and_lose_no_subcarrier(instance: Instance) -> None:
    site = SiteQuantities(instance)
    answer = find_policy("joint").allocate(instance).allocation
    devices = np.flatnonzero(answer.offloads).tolist()
    groups = {device: answer.group(device).tolist() for device in devices}
    plan = PartialPlan(site, groups, {device: float(answer.start_s[device]) for device in devices})
    before_j, owned = plan.worth_j(), sorted(chain(*plan.groups.values()))
    exchange_subcarriers(plan)

    assert plan.worth_j() >= before_j * (1 - 1e-9)
    assert sorted(chain(*plan.groups.values())) == owned


def test_the_bound_is_exact_where_uploads_are_short() -> None:
    for seed in range(10):
        instance = paper_setting(np.random.default_rng([5, seed]), 5)
        relaxed = relax(instance)
        assert relaxed is not None
        answer = JointPlus().allocate(instance, [dict.fromkeys(relaxed.devices.tolist(), ())])

        assert answer.worth_j == pytest.approx(relaxed.bound_j, rel=1e-4)


def test_the_search_gives_an_accepted_device_more_subcarriers_to_make_room_for_another() -> None:
    instance = radio_tight_setting(np.random.default_rng([5, 3]), 5, 3, 2e9)
    plain, plus = (find_policy(name).allocate(instance) for name in ("joint", "joint_plus"))

    assert plain.allocation.offloads.tolist() == [True, True, False, False, True]
    assert plus.allocation.offloads.tolist() == [False, True, True, False, False]
    assert plus.saving_j > 1.7 * plain.saving_j


def test_an_unknown_policy_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="no edge policy 'joit'; did you mean 'joint'"):
        find_policy("joit")


# Size and numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONTENDERS)
def test_many_devices_are_no_problem(name: str) -> None:
    instance = paper_setting(np.random.default_rng(0), 30_000, 2)

    assert violation_of_answer(instance, find_policy(name).allocate(instance)) is None


def test_a_large_instance_has_no_bound() -> None:
    instance = paper_setting(np.random.default_rng(0), MOST_CHOICES, 2)

    assert saving_bound(instance) is None


@pytest.fixture(scope="module")
def six_devices() -> dict[str, np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    """Energy and accepted tasks of every policy on the same fifty cells of the paper."""
    cells = [paper_setting(np.random.default_rng([6, seed]), 6) for seed in range(50)]
    answers = {name: [policy.allocate(cell).allocation for cell in cells] for name, policy in POLICIES.items()}
    return {name: np.array([(each.energy_j, each.num_accepted) for each in found]) for name, found in answers.items()}


@pytest.mark.parametrize(
    ("name", "energy_j", "num_accepted"),
    [
        ("local", 4.56, 0.0),
        ("radio_first", 1.46, 3.14),
        ("cpu_first", 1.197, 3.84),
        ("joint", 1.182, 3.84),
        ("joint_plus", 1.17, 3.86),
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
    assert energies_j["joint_plus"] <= energies_j["joint"]
    assert energies_j["min_group"] < energies_j["joint_plus"]
