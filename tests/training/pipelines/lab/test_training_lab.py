"""The laboratory as an experiment: predictions come from a healthy run and the faults, and reports say both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from takeup.cli import takeup
from takeup.core.scenario import validate
from takeup.errors import BadInput, BadScenario
from takeup.training import experiment as lab
from takeup.training.experiment import ADAPTIVE, STOCK_1F1B, STOCK_ZB, TrainingScenario, measure, profile_of, run
from takeup.training.pipelines.lab.trials import LabTrial, TrialOutcome
from takeup.training.pipelines.planners import find_policy
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.schedule import Schedule
from takeup.training.pipelines.timing.evaluation import timeline_of
from takeup.training.report import LabRow, lab_bars, lab_table
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
    return validate(TrainingScenario, {"verb": "lab", "num_microbatches": 12} | values, "test")


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


def test_a_report_has_a_row_for_each_system_and_checks_gradients(machine: Machine) -> None:
    report = run(scenario(slow=["2:20"]), quiet=True)

    (table,) = report.tables
    assert "link 2: 20 ms latency" in table.title
    assert [row[0] for row in table.rows] == ["stock 1F1B", "stock ZB-H1", "adaptive"]
    assert table.rows[0][4] == 1.0
    assert float(str(table.rows[2][4])) > 1.3
    assert report.holds


def test_cables_are_used_if_they_are_asked_for(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "uses_namespaces", lambda link: link == "namespaces")

    by_cable = run(scenario(slow=["2:0+20"], link="namespaces"), quiet=True)
    everywhere = all(trial.cables for trial in machine.trials)
    run(scenario(slow=["2:0+20"]), quiet=True)

    assert everywhere
    assert not any(trial.cables for trial in machine.trials)
    assert "link 2: 20 ms service, cables between namespaces" in by_cable.tables[0].title


def test_if_nothing_is_slow_the_last_link_is(machine: Machine) -> None:
    run(scenario(op_ms=20), quiet=True)

    assert machine.trials[-1].truth.links == (Link(), Link(), Link(0.04))


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        ({"num_stages": 1}, BadInput, "has no link that could be slow"),
        ({"slow_stages": ["x"]}, BadScenario, "write STAGE:FACTOR"),
        ({"slow_stages": ["9:2"]}, BadInput, "there is no stage 9"),
        ({"num_iterations": 2}, BadScenario, "num_iterations"),
        ({"link": "string"}, BadScenario, "user-space"),
    ],
)
def test_a_mistake_is_one_sentence(machine: Machine, values: dict[str, Any], kind: type[BadInput], words: str) -> None:
    with pytest.raises(kind, match=words):
        run(scenario(**values), quiet=True)


def test_the_command_prints_the_table(machine: Machine) -> None:
    result = CliRunner().invoke(
        takeup, ["training", "lab", "--microbatches", "8", "--slow", "0:5+10", "--quiet", "--json"]
    )

    assert result.exit_code == 0, result.output
    assert "link 0: 5 ms latency + 10 ms service" in result.output


def test_rows_are_set_beside_the_first() -> None:
    first, second = (LabRow(name, "", 1.0, taken_s, 0.0, 0, (), None) for name, taken_s in (("a", 2.0), ("b", 0.8)))

    table = lab_table([first, second], "faults")
    bars = lab_bars([first, second])

    assert [row[3:5] for row in table.rows] == [(-50.0, 1.0), (25.0, 2.5)]
    assert table.columns[4].name == "faster than a"
    assert [row["iteration"] for row in bars.rows] == [1000.0, 2000.0, 1000.0, 800.0]


def test_the_order_that_was_run_is_the_one_that_is_predicted(machine: Machine) -> None:
    truth = slow(4, 12, {2: 20})

    (row,) = measure([truth], [ADAPTIVE], 8)

    order = find_policy("adaptra").plan(truth).schedule.to_csv()
    assert row.predicted_s == pytest.approx(
        timeline_of(Schedule.from_csv(order), machine.really(truth)).iteration_s, rel=0.002
    )
