"""The site over time: promises are kept, plans see no truth, and what is certain is never late."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.cells import instances, optioned_instances, two_devices
from takeup.core.seeds import Streams
from takeup.edge.contract import Policy
from takeup.edge.model import Answer, Instance
from takeup.edge.results import SimulationResult
from takeup.edge.simulate.policy_view import CERTAIN, FAINT, Commitment, Uncertainty, grain_of, policy_view
from takeup.edge.simulate.site import simulate
from takeup.edge.traces.files import CQI_64QAM
from takeup.edge.traces.generators import paper_setting, poisson_times, radio_tight_setting, with_arrivals
from takeup.errors import BadInput
from takeup.papers.edge.baselines import COMPARED
from takeup.papers.edge.joint import Joint, Local, MinimumGroups

JOINT = Joint()


def arriving(instance: Instance, seed: int, tasks_per_s: float) -> Instance:
    return with_arrivals(instance, poisson_times(np.random.default_rng(seed), instance.num_devices, tasks_per_s))


def tight(num_tasks: int, tasks_per_s: float = 25.0, seed: int = 5) -> Instance:
    return arriving(radio_tight_setting(np.random.default_rng(seed), num_tasks), seed, tasks_per_s)


def one_by_one(**changes: Any) -> Instance:
    """Three tasks of one second each for a single subcarrier: the first two arrive together, the third later."""
    plain = replace(
        two_devices(),
        gains=np.array([[4.0], [4.0], [4.0]]),
        bits=np.full(3, 2.0),
        cycles=np.array([8.0, 4.0, 8.0]),
        deadlines_s=np.array([4.0, 4.0, 7.0]),
        releases_s=np.array([0.0, 0.0, 3.5]),
        values_j=np.zeros(3),
    )
    return replace(plain, **changes)


@dataclass
class Watched:
    """A policy that notes what it is shown, and can leave out promises."""

    inner: Policy = JOINT
    leaves_promises: bool = False
    lies: bool = False
    shown: list[Instance] = field(default_factory=list)
    name: str = "watched"
    ignores_cpu: bool = False

    def allocate(self, instance: Instance) -> Answer:
        self.shown.append(instance)
        has_promises = bool((instance.gains == FAINT).any())
        answer = (Local() if self.leaves_promises and has_promises else self.inner).allocate(instance)
        return replace(answer, saving_j=answer.saving_j + 1e6) if self.lies else answer


# What is certain ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["joint", "cpu_first", "greedy"])
@given(instance=instances(most_devices=10) | optioned_instances(), speed=st.sampled_from([0.3, 1.0, 4.0]))
@settings(max_examples=12, deadline=None)
def test_with_certain_cycles_and_channels_nothing_is_late(name: str, instance: Instance, speed: float) -> None:
    if instance.num_devices == 0:
        return
    mean_s = float((instance.deadlines_s - instance.releases_s).mean())
    served = simulate(COMPARED[name], arriving(instance, 3, speed * 5 / mean_s))

    for task in served.tasks:
        assert task.late == (bool(instance.too_slow[task.device]) and not task.accepted)
        if task.accepted:
            assert task.decided_s < task.upload_s <= task.start_s < task.end_s
            assert task.end_s <= task.deadline_s + 1e-4 * float((instance.deadlines_s - instance.releases_s).max())
    assert served.busy.subcarriers.max() <= instance.num_subcarriers
    assert served.busy.cores.max() <= instance.num_cores


@pytest.mark.parametrize("name", ["joint", "exact", "cpu_first", "greedy"])
@pytest.mark.parametrize("setting", [paper_setting, radio_tight_setting])
def test_tasks_that_all_come_at_once_get_the_answer_for_all(name: str, setting: Any) -> None:
    instance = setting(np.random.default_rng(8), 8)
    offline = COMPARED[name].allocate(instance).allocation
    served = simulate(COMPARED[name], instance)

    assert served.num_plans == 1
    assert [task.accepted for task in served.tasks] == offline.offloads.tolist()
    assert [task.energy_j for task in served.tasks] == pytest.approx(offline.energies_j.tolist(), rel=1e-9)
    chosen = np.flatnonzero(offline.offloads)
    assert np.array([task.promised_s for task in served.tasks])[chosen].tolist() == offline.start_s[chosen].tolist()
    assert np.array([task.upload_s for task in served.tasks])[chosen] == pytest.approx(offline.upload_s[chosen])


def test_a_subcarrier_is_free_again_when_an_upload_ends() -> None:
    served = simulate(JOINT, one_by_one())

    assert [task.accepted for task in served.tasks] == [True, False, True]
    assert served.busy.subcarriers.max() == 1
    assert served.tasks[1].energy_j == pytest.approx(4.0)  # its own run at the slowest clock
    assert served.tasks[1].end_s == pytest.approx(4.0)


def test_a_free_core_begins_before_the_planned_start() -> None:
    task = simulate(JOINT, one_by_one()).tasks[0]

    assert task.promised_s == 3.0
    assert task.start_s == task.upload_s
    assert task.end_s == pytest.approx(task.start_s + 1.0)


def test_who_waits_is_accepted_once_there_is_room_and_who_has_waited_runs_faster() -> None:
    patient = simulate(JOINT, one_by_one(), patience_s=3.0)
    upload_s = patient.tasks[0].upload_s
    impatient = simulate(JOINT, one_by_one(), patience_s=0.5 * upload_s)

    assert patient.tasks[1].accepted
    assert patient.tasks[1].decided_s == upload_s
    assert not impatient.tasks[1].accepted
    left_s = 4.0 - 0.5 * upload_s
    assert impatient.tasks[1].energy_j == pytest.approx(4.0 * (4.0 / left_s) ** 2)


def test_patience_beyond_the_deadline_ends_late() -> None:
    never = replace(one_by_one(), gains=np.full((3, 1), 1e-9), local_hz=1.0, miss_penalty_j=50.0)
    served = simulate(JOINT, never, patience_s=10.0)

    assert [task.late for task in served.tasks] == [True, True, True]
    assert served.tasks[0].energy_j == pytest.approx(8.0 * 1.0**2 + 50.0)


# Promises -------------------------------------------------------------------------------------------------------------


@given(
    instance=instances(most_devices=10), shape=st.sampled_from([1.0, 4.0, math.inf]), error_db=st.sampled_from([0, 6])
)
@settings(max_examples=25, deadline=None)
def test_an_accepted_task_is_never_sent_home(instance: Instance, shape: float, error_db: float) -> None:
    if instance.num_devices == 0:
        return
    mean_s = float((instance.deadlines_s - instance.releases_s).mean())
    uncertainty = Uncertainty(shape, error_db, quantile=0.6)
    served = simulate(JOINT, arriving(instance, 3, 5 / mean_s), uncertainty=uncertainty, seed=4)

    for task in served.tasks:
        assert not math.isnan(task.decided_s)
        assert task.end_s > task.arrival_s
        if task.accepted:
            assert task.late or task.start_s < task.end_s <= task.deadline_s * (1 + 1e-3)
            assert task.num_subcarriers > 0
        else:
            assert math.isnan(task.start_s)


def test_an_answer_that_drops_a_promise_is_not_carried_out() -> None:
    running_s = simulate(JOINT, one_by_one()).tasks[0].start_s + 0.1
    instance = one_by_one(releases_s=np.array([0.0, running_s, 3.5]))
    kept = simulate(Watched(leaves_promises=True), instance)
    plain = simulate(JOINT, instance)

    assert [task.accepted for task in kept.tasks] == [True, False, True]
    assert [task.accepted for task in plain.tasks] == [True, True, True]
    assert (kept.num_kept, plain.num_kept) == (1, 0)
    assert not kept.tasks[0].late


def test_a_policy_that_breaks_a_constraint_is_stopped() -> None:
    with pytest.raises(BadInput, match="policy 'watched' broke a constraint at 0 s, saving"):
        simulate(Watched(lies=True), one_by_one())


def test_a_policy_that_ignores_the_cpu_is_refused() -> None:
    with pytest.raises(BadInput, match="ignores the CPU"):
        simulate(MinimumGroups(), one_by_one())


@pytest.mark.parametrize("patience_s", [-1.0, math.nan, math.inf])
def test_senseless_patience_is_refused(patience_s: float) -> None:
    with pytest.raises(BadInput, match="patience_s"):
        simulate(JOINT, one_by_one(), patience_s=patience_s)


def test_a_run_without_tasks_is_refused() -> None:
    with pytest.raises(BadInput, match="no tasks"):
        simulate(JOINT, paper_setting(np.random.default_rng(0), 0))


# What a policy is shown -----------------------------------------------------------------------------------------------


def shown_with_promises(instance: Instance, **changes: Any) -> tuple[Instance, float]:
    grain_s = grain_of(instance)
    promises = [
        Commitment(0, ready_s=2.0, run_s=1.0, due_s=4.0),
        Commitment(1, ready_s=0.5, run_s=0.25, due_s=4.0, is_running=True),
    ]
    view = policy_view(replace(instance, **changes), 1.0, np.array([2]), promises, np.array([0, 2]), grain_s)
    return view.instance, grain_s


def wide(num_subcarriers: int = 3) -> Instance:
    return replace(one_by_one(), gains=np.full((3, num_subcarriers), 4.0), deadlines_s=np.array([4.0, 4.0, 7.0]))


def test_newcomers_see_free_subcarriers_and_promises_their_own() -> None:
    shown, grain_s = shown_with_promises(wide())

    assert shown.gains.shape == (3, 4)
    assert shown.gains[0].tolist() == [4.0, 4.0, FAINT, FAINT]
    assert (shown.gains[1:, :2] == FAINT).all()
    assert shown.releases_s.tolist() == [0.0, 1.0, 0.0]
    assert shown.run_s.tolist() == pytest.approx([1.0 + 3 * grain_s, 1.0, 0.25])
    assert shown.deadlines_s.tolist() == pytest.approx([6.0, 3.0 + 2 * grain_s, 0.25 + grain_s])
    assert min(shown.worth_j[1:]) > shown.worth_j[0]


@pytest.mark.parametrize("name", ["joint", "cpu_first", "exact", "greedy", "auto"])
def test_every_policy_keeps_what_it_is_shown_as_promised(name: str) -> None:
    shown, _ = shown_with_promises(wide())

    assert COMPARED[name].allocate(shown).allocation.offloads.all()


def test_groups_of_certain_sizes_give_promises_as_many_subcarriers_as_they_need() -> None:
    shown, _ = shown_with_promises(wide(), group_sizes=(2, 3))

    assert shown.num_subcarriers == 2 + 2 * 2
    assert JOINT.allocate(shown).allocation.offloads.all()


def test_neighbours_across_a_used_subcarrier_are_not_shown_together() -> None:
    view = policy_view(replace(wide(6), contiguous=True), 0.0, np.array([2]), [], np.array([0, 2, 3, 5]), 1e-6)

    assert view.subcarriers.tolist() == [2, 3]


def test_a_promise_that_cannot_be_kept_any_more_does_not_stand_in_the_way() -> None:
    hopeless = Commitment(0, ready_s=3.5, run_s=1.0, due_s=4.0)
    view = policy_view(wide(), 3.0, np.array([2]), [hopeless], np.array([0, 1, 2]), 1e-6)

    assert view.promises == ()


def test_a_newcomer_is_not_accepted_with_subcarriers_of_others() -> None:
    view = policy_view(wide(), 0.0, np.array([2]), [Commitment(0, 0.0, 1.0, 4.0)], np.array([1]), 1e-6)

    assert view.group(0, np.array([0, -1])) == np.array([1])
    assert view.group(0, np.array([0, 0])) is None


def test_plans_reckon_with_quantiles_and_never_see_the_truth() -> None:
    instance, uncertainty = tight(12), Uncertainty(2.0, 3.0, quantile=0.9)
    watched, other = Watched(), Watched()
    simulate(watched, instance, uncertainty=uncertainty, seed=1)
    simulate(other, instance, uncertainty=uncertainty, seed=2)

    planned = uncertainty.planned(instance)
    assert watched.shown[0].cycles.tolist() == planned.cycles[:1].tolist()
    assert np.array_equal(watched.shown[0].gains, planned.gains[:1])
    assert np.array_equal(watched.shown[0].gains, other.shown[0].gains)  # before anything could be learned


# What is uncertain ----------------------------------------------------------------------------------------------------


def test_a_run_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    first, second, third = (
        simulate(JOINT, tight(30), uncertainty=Uncertainty(2.0, 3.0), seed=seed) for seed in (1, 1, 2)
    )

    assert repr(first.tasks) == repr(second.tasks)
    assert repr(first.tasks) != repr(third.tasks)


@pytest.mark.parametrize("setting", [paper_setting, radio_tight_setting])
def test_few_tasks_are_late_at_a_high_quantile_and_more_at_a_low_one(setting: Any) -> None:
    instance = arriving(setting(np.random.default_rng(5), 80), 6, 60.0 if setting is paper_setting else 40.0)
    careful, careless = (
        simulate(JOINT, instance, uncertainty=Uncertainty(4.0, 3.0, quantile), seed=1).whole for quantile in (0.95, 0.4)
    )

    assert careful.miss_share <= 0.05
    assert careless.miss_share > careful.miss_share


def test_an_upload_that_is_not_over_by_the_deadline_is_given_up() -> None:
    served = simulate(JOINT, tight(60), uncertainty=Uncertainty(math.inf, 25.0, quantile=0.3), seed=3)
    given_up = [task for task in served.tasks if task.accepted and math.isnan(task.upload_s)]

    assert given_up
    assert all(task.late and task.end_s == pytest.approx(task.deadline_s, rel=1e-3) for task in given_up)
    assert all(task.energy_j > 0 for task in given_up)


def test_local_runs_are_as_long_as_they_turn_out_to_be() -> None:
    instance, uncertainty = tight(200), Uncertainty(4.0, quantile=0.95)
    served = simulate(Local(), instance, uncertainty=uncertainty, seed=1)
    truth = uncertainty.truth(instance, Streams(1).child("edge online"))
    clocks_hz = np.minimum(uncertainty.planned(instance).cycles / (instance.deadlines_s - instance.releases_s), 3e9)

    assert [task.energy_j for task in served.tasks] == pytest.approx((1e-27 * truth.cycles * clocks_hz**2).tolist())
    assert np.mean([task.late for task in served.tasks]) == pytest.approx(0.05, abs=0.06)
    assert math.isnan(served.whole.miss_share)


def test_quantiles_cover_the_share_they_say() -> None:
    instance, uncertainty = tight(4000), Uncertainty(3.0, 4.0, quantile=0.9)
    planned, truth = uncertainty.planned(instance), uncertainty.truth(instance, Streams(0))

    assert np.mean(truth.cycles <= planned.cycles) == pytest.approx(0.9, abs=0.02)
    assert np.mean(truth.gains[:, 0] >= planned.gains[:, 0]) == pytest.approx(0.9, abs=0.02)
    assert truth.cycles.mean() == pytest.approx(instance.cycles.mean(), rel=0.03)


def test_exponential_cycles_have_no_memory() -> None:
    uncertainty = Uncertainty(1.0, quantile=0.9)

    assert uncertainty.cycles_factor(0.0) == pytest.approx(math.log(10))
    assert uncertainty.cycles_factor(2.5) == pytest.approx(2.5 + math.log(10))
    assert uncertainty.cycles_factor(1e6) == 1e6  # beyond what the distribution can tell


def test_what_is_certain_is_planned_as_it_is() -> None:
    instance = tight(3)

    assert np.array_equal(CERTAIN.planned(instance).cycles, instance.cycles)
    assert np.array_equal(CERTAIN.truth(instance, Streams(0)).gains, instance.gains)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cycles_shape": 0.0}, "cycles_shape is 0"),
        ({"cycles_shape": math.nan}, "cycles_shape is nan"),
        ({"gain_error_db": -1.0}, "gain_error_db is -1"),
        ({"gain_error_db": math.inf}, "gain_error_db is inf"),
        ({"quantile": 1.0}, "quantile is 1"),
        ({"quantile": math.nan}, "quantile is nan"),
    ],
)
def test_senseless_uncertainty_is_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Uncertainty(**values)


def test_modulations_follow_the_channel_as_it_is() -> None:
    radio = replace(tight(1).radio, modulations=CQI_64QAM[::7])
    served = simulate(JOINT, replace(tight(40), radio=radio), uncertainty=Uncertainty(math.inf, 8.0), seed=2)

    assert any(task.accepted for task in served.tasks)
    assert served.whole.miss_share <= 0.25


# What a run leaves behind ---------------------------------------------------------------------------------------------


def by_hand() -> SimulationResult:
    return simulate(JOINT, one_by_one())


def test_windows_add_up_to_the_whole() -> None:
    served = simulate(JOINT, tight(60))
    windows, whole = served.over_time(7), served.whole

    assert sum(window.num_arrived for window in windows) == whole.num_arrived == 60
    for name in ("radio_share", "cpu_share"):
        assert np.mean([getattr(window, name) for window in windows]) == pytest.approx(getattr(whole, name), rel=1e-9)
    assert windows[0].begin_s == min(task.arrival_s for task in served.tasks)
    assert windows[-1].end_s == whole.end_s


def test_the_use_of_cores_is_the_time_they_ran() -> None:
    served = by_hand()
    whole = served.whole

    assert whole.cpu_share * (whole.end_s - whole.begin_s) == pytest.approx(2.0)  # two tasks of a second
    uploads_s = sum(task.upload_s - task.decided_s for task in served.tasks if task.accepted)
    assert whole.radio_share * (whole.end_s - whole.begin_s) == pytest.approx(uploads_s)
    assert whole.accept_share == pytest.approx(2 / 3)
    assert whole.energy_per_task_j == pytest.approx(np.mean([task.energy_j for task in served.tasks]))


def test_a_window_without_tasks_has_no_shares() -> None:
    quiet = by_hand().over_time(40)[20]

    assert quiet.num_arrived == 0
    assert math.isnan(quiet.accept_share)
    assert quiet.radio_share >= 0


def test_the_saving_is_the_sum_over_all_tasks() -> None:
    served = by_hand()

    assert served.saving_j == pytest.approx(sum(task.local_j - task.energy_j for task in served.tasks))
    with pytest.raises(BadInput, match="0 windows show nothing"):
        served.over_time(0)
