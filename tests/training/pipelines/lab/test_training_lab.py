"""The laboratory: predictions come from a healthy run and the faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from support.pipeline_lab import measured as lab
from support.pipeline_lab.measured import ADAPTIVE, STOCK_1F1B, STOCK_ZB, measure
from support.pipeline_lab.trials import LabTrial, TrialOutcome
from takeup.core.scenario import validate
from takeup.training.experiment import TrainingScenario, profile_of
from takeup.training.pipelines.planners import find_policy
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.schedule import Schedule
from takeup.training.pipelines.timing.evaluation import timeline_of
from training.pipeline_profiles import congested, slow

EXTRA_S, HOST_S, HOP_S = 0.0005, 0.0003, 0.0004  # what a real machine adds to operations, between them, to messages


class Machine:
    """Ranks that take what the simulator says, on a machine with overheads that nobody was told of."""

    def __init__(self) -> None:
        self.trials: list[LabTrial] = []

    def run(self, trials: Sequence[LabTrial], tick: Callable[[], object]) -> list[TrialOutcome]:
        self.trials = list(trials)
        return [self._outcome(trial, tick) for trial in trials]

    def _outcome(self, trial: LabTrial, tick: Callable[[], object]) -> TrialOutcome:
        tick()
        adaptive, delegated = trial.runtime == "adaptive", ()
        planner = {"stock_1f1b": "one_f_one_b", "stock": "zb_h1"}.get(trial.runtime, trial.planner)
        order = find_policy(planner).plan(trial.truth).schedule
        truth = self.really(trial.truth)
        if adaptive:
            delegated = tuple(number for number, link in enumerate(trial.truth.links) if link.delay_s > 0)  # type: ignore[assignment]
            truth = replace(truth, max_sends=None)
        if trial.runtime == "stock_1f1b":
            truth = replace(truth, max_sends=truth.max_sends or 2, host_s=HOST_S / 3)  # it adds less
        taken_s = timeline_of(order, truth).iteration_s
        found = {"order": order.to_csv(), "delegated": delegated, "measured": replace(truth, host_s=0.0)}
        return TrialOutcome(trial.name, (9.0, taken_s, taken_s), 1e-9, **(found if adaptive else {}), pauses_s=(0.001,))  # type: ignore[arg-type]

    def really(self, truth: Profile) -> Profile:
        """The pipeline with what the machine adds."""
        stages = [
            Stage(stage.forward_s + EXTRA_S, stage.backward_s + EXTRA_S, stage.weight_s + EXTRA_S)
            for stage in truth.stages
        ]
        links = [replace(link, latency_s=link.latency_s + HOP_S) for link in truth.links]
        return replace(truth, stages=tuple(stages), links=tuple(links), host_s=HOST_S)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(lab, "run_trials", made.run)
    return made


def scenario(**values: Any) -> TrainingScenario:
    return validate(TrainingScenario, {"verb": "plan", "num_microbatches": 12} | values, "test")


@pytest.mark.parametrize(
    "truth", [slow(4, 12, {2: 20}), congested(4, 12, {0: 25}), slow(4, 12, {}), slow(3, 8, {0: 10, 1: 30})]
)
def test_what_is_predicted_from_a_healthy_run_is_what_happens(machine: Machine, truth: Profile) -> None:
    rows = measure([truth], [STOCK_1F1B, STOCK_ZB, ADAPTIVE], 8)

    assert [row.system for row in rows] == ["stock 1F1B", "stock ZB-H1", "adaptive"]
    for row in rows:
        assert row.predicted_s == pytest.approx(row.measured_s, rel=0.002)


def test_one_queue_holds_stock_runtimes_up_and_no_delegate(machine: Machine) -> None:
    truth = replace(slow(4, 12, {2: 20}), max_sends=1)

    blocked, adaptive = measure([truth], [STOCK_ZB, ADAPTIVE], 8)
    (free,) = measure([replace(truth, max_sends=None)], [STOCK_ZB], 8)

    assert blocked.predicted_s > 1.05 * free.predicted_s
    assert adaptive.predicted_s == pytest.approx(adaptive.measured_s, rel=0.002)


def test_a_slow_stage_is_predicted_too(machine: Machine) -> None:
    truth = profile_of(scenario(slow_stages=["1:1.5"], slow=["0:10"]))

    rows = measure([truth], [STOCK_ZB, ADAPTIVE], 8)

    assert truth.stages[1].forward_s == pytest.approx(0.015)
    for row in rows:
        assert row.predicted_s == pytest.approx(row.measured_s, rel=0.002)


def test_healthy_runs_of_every_runtime_come_first_and_have_no_faults(machine: Machine) -> None:
    measure([replace(slow(4, 12, {2: 20}), max_sends=1)], [STOCK_1F1B], 8)

    *healthy, stock = machine.trials
    assert [trial.runtime for trial in healthy] == ["adaptive", "stock_1f1b"]
    assert all((trial.truth.links, trial.truth.max_sends) == ((Link(),) * 3, None) for trial in healthy)
    assert (stock.runtime, stock.truth.links[2]) == ("stock_1f1b", Link(0.02))


def test_the_adaptive_schedule_is_told_neither_order_nor_faults_to_plan_for(machine: Machine) -> None:
    measure([slow(4, 12, {2: 20})], [ADAPTIVE], 8)

    assert machine.trials[-1].order == ""
    assert machine.trials[-1].planner == "adaptra"


def test_the_order_that_was_run_is_the_one_that_is_predicted(machine: Machine) -> None:
    truth = slow(4, 12, {2: 20})

    (row,) = measure([truth], [ADAPTIVE], 8)

    order = find_policy("adaptra").plan(truth).schedule.to_csv()
    assert row.predicted_s == pytest.approx(
        timeline_of(Schedule.from_csv(order), machine.really(truth)).iteration_s, rel=0.002
    )
