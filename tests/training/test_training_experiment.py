"""From a scenario or a command line to a report, and the same numbers again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from takeup.cli import takeup
from takeup.core.report import Report
from takeup.core.scenario import validate
from takeup.errors import BadInput, BadScenario, TakeupError, UnknownName
from takeup.training.experiment import TrainingScenario, profile_of, run, run_again
from takeup.training.pipelines.profile import Link
from takeup.training.pipelines.schedule import Schedule
from takeup.training.pipelines.timing.evaluation import timeline_of
from takeup.training.traces.profiles import load_schedule, save_profile
from training.pipeline_profiles import ms, slow


def scenario(**values: Any) -> TrainingScenario:
    return validate(TrainingScenario, {"verb": "plan"} | values, "test")


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(takeup, ["training", *arguments, "--json", "--quiet"])


# Scenarios


def test_a_plan_reports_its_time_and_its_chart() -> None:
    report = run(scenario(num_microbatches=12, slow=["0:20"]))

    assert [table.title for table in report.tables] == ["Stages under adaptra", "Planners"]
    assert report.tables[1].rows[0][1] == pytest.approx(410)
    assert report.series[0].kind == "span"


def test_a_report_can_be_run_again() -> None:
    for values in ({"verb": "simulate", "num_runs": 3, "uneven": True}, {"verb": "compare", "delays_ms": [0, 20]}):
        report = run(scenario(num_microbatches=8, **values), quiet=True)

        again = run_again(dict(Report.from_json(report.to_json()).scenario), "report", quiet=True)

        assert again.tables == report.tables


def test_options_of_the_pipeline_arrive() -> None:
    given = scenario(slow=["1:5+7", "0:3"], max_live=6, max_sends=2, hop_ms=1, host_ms=2, num_stages=3)

    profile = profile_of(given)

    assert profile.links == (Link(0.003), Link(0.005, 0.007))
    assert profile.live_limits() == (6, 6, 6)
    assert (profile.max_sends, profile.hop_s, profile.host_s) == (2, 0.001, 0.002)


@pytest.mark.parametrize(("policy", "fits"), [("zbv", False), ("one_f_one_b", True), ("gpipe", False), ("zb_h2", True)])
def test_a_limit_of_memory_also_holds_for_chunks(policy: str, fits: bool) -> None:
    max_live = 3 if policy == "zbv" else 4

    report = run(scenario(policies=[policy], max_live=max_live), quiet=True)

    assert report.tables[1].rows[0][-1] is fits


def test_uneven_pipelines_follow_the_seed() -> None:
    first, same, other = (profile_of(scenario(uneven=True, seed=seed)) for seed in (1, 1, 2))

    assert first == same != other
    assert len({stage.forward_s for stage in first.stages}) == 4


def test_delays_are_tried_one_after_the_other_on_the_slow_links() -> None:
    values = {"verb": "compare", "policies": ["zb_h2", "adaptra"], "slow": ["1:0"], "num_microbatches": 12}

    latency = run(scenario(delays_ms=[0, 40], **values), quiet=True)
    service = run(scenario(delays_ms=[0, 40], delays_are="service", **values), quiet=True)

    assert [table.title for table in latency.tables] == ["latency 0 ms on link [1]", "latency 40 ms on link [1]"]
    assert len(latency.series[0].rows) == 4
    assert latency.tables[0].rows == service.tables[0].rows
    assert float(str(service.tables[1].rows[1][1])) > float(str(latency.tables[1].rows[1][1]))


def test_a_measured_pipeline_and_a_given_schedule_are_read_from_files(tmp_path: Path) -> None:
    save_profile(slow(2, 2, {0: 30}), tmp_path / "profile.toml")
    (tmp_path / "schedule.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", encoding="utf-8")
    files = {"profile": str(tmp_path / "profile.toml"), "schedule": str(tmp_path / "schedule.csv")}

    report = run(scenario(verb="simulate", num_runs=2, jitter_share=0.0, **files), quiet=True)

    assert report.tables[0].rows[0][0] == "as given"
    assert report.tables[0].rows[0][1] == pytest.approx(10 + 30 + 30 + 30 + 30 + 20)


@pytest.mark.parametrize(
    ("values", "kind", "words"),
    [
        ({"slow": ["2"]}, BadScenario, "write LINK:LATENCY"),
        ({"slow": ["-1:3"]}, BadScenario, "write LINK:LATENCY"),
        ({"slow": ["3:20"]}, BadInput, "there is no link 3"),
        ({"verb": "compare", "num_stages": 1, "delays_ms": [3]}, BadInput, "no link to delay"),
        ({"verb": "compare", "delays_ms": [-3]}, BadInput, "latency_s is -0.003"),
        ({"policies": []}, BadScenario, "at least one policy"),
        ({"policies": ["adaptra", "gpipe"]}, BadScenario, "takes one policy"),
        ({"policies": ["adapt"]}, UnknownName, "did you mean 'adaptra'"),
        ({"num_stages": 0}, BadScenario, "num_stages"),
        ({"op_ms": float("nan")}, TakeupError, "nan"),
        ({"op_ms": -1}, BadScenario, "op_ms"),
        ({"max_live": 0}, BadScenario, "max_live"),
        ({"profile": "nowhere.toml"}, BadScenario, "cannot read scenario"),
    ],
)
def test_a_mistake_is_one_sentence(values: dict[str, Any], kind: type[TakeupError], words: str) -> None:
    with pytest.raises(kind, match=words):
        run(scenario(**values), quiet=True)


# Commands


def test_plan_prints_a_report_and_writes_the_schedule(tmp_path: Path) -> None:
    path = tmp_path / "schedule.csv"

    result = invoke("plan", "--stages", "4", "--microbatches", "12", "--slow", "0:20", "--csv", str(path))

    report = json.loads(result.stdout)
    schedule = load_schedule(path)
    assert isinstance(schedule, Schedule)
    assert report["tables"][1]["rows"][0][1] == pytest.approx(410)
    assert ms(timeline_of(schedule, slow(4, 12, {0: 20})).iteration_s) == 410


def test_compare_and_simulate_print_a_row_for_every_policy() -> None:
    compared = json.loads(invoke("compare", "gpipe,adaptra", "--delays", "0,10").stdout)
    simulated = json.loads(invoke("simulate", "gpipe,adaptra", "--runs", "2").stdout)

    assert [len(table["rows"]) for table in compared["tables"]] == [2, 2]
    assert [row[0] for row in simulated["tables"][1]["rows"]] == ["gpipe", "adaptra"]


def test_the_default_policies_all_work() -> None:
    result = invoke("compare", "--slow", "1:5+15")

    assert result.exit_code == 0
    assert len(json.loads(result.stdout)["tables"][0]["rows"]) == 7
