"""From scenarios to reports: what is refused, what each verb gives, and that a run can be repeated anywhere."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from takeup.caching import experiment
from takeup.caching.experiment import CachingScenario, load, run, run_again
from takeup.caching.model import CachingResult, EngineModel, Workload
from takeup.caching.policies import find_policy
from takeup.caching.simulate.plain import simulate
from takeup.caching.traces import read_trace
from takeup.core.report import Cell, Report
from takeup.core.scenario import to_toml, validate
from takeup.errors import BadInput, BadScenario, BadTrace, TakeupError, UnknownName

DATA = Path(__file__).parent / "data"


def scenario(**values: Any) -> CachingScenario:
    source = {} if "trace" in values else {"workload": "scan"}
    return validate(CachingScenario, {"verb": "compare", **source, **values}, "options")


def rows(report: Report) -> list[dict[str, Cell]]:
    (table,) = report.tables
    return [dict(zip([heading.name for heading in table.columns], row, strict=True)) for row in table.rows]


@pytest.fixture
def jobs(tmp_path: Path) -> str:
    """a and b are written and pushed out by c; then both are read twice."""
    path = tmp_path / "jobs.csv"
    path.write_text(
        "task,job,inputs,outputs,output_bytes,compute_s\n"
        "t0,0,,a,1,1\nt1,0,,b,1,1\nt2,0,,c,1,1\nt3,0,a b,,,1\nt4,0,a b,,,1\n"
    )
    return str(path)


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"trace": "x.csv", "workload": "scan"}, BadScenario, "give either a workload by name or a trace file"),
        ({"trace": None}, BadScenario, "options: give either a workload by name or a trace file, and not both"),
        ({"verb": "compete"}, BadScenario, "'verb' is 'compete', expected 'simulate', 'compare'"),
        ({"policies": ["lrcc"]}, UnknownName, "no caching policy 'lrcc'; did you mean 'lrc'"),
        ({"policies": ["lru+admission"]}, BadInput, "keeps no rank"),
        ({"policies": []}, BadScenario, "'policies' is .*: name at least one policy"),
        ({"policies": "lru"}, BadScenario, "'policies' is 'lru', expected a list"),
        ({"capacities": ["0%"]}, BadInput, "'0%' leaves no room at all"),
        ({"capacities": ["-1GB"]}, BadInput, "'-1GB' is not a size"),
        ({"capacities": ["much"]}, BadInput, "'much' is not a size"),
        ({"capacities": []}, BadScenario, "give at least one size of the cache"),
        ({"miss": "forget"}, BadScenario, "'miss' is 'forget', expected 'disk', 'recompute' or 'level'"),
        ({"cost_model": "free"}, BadScenario, "'cost_model' is 'free'"),
        ({"profile": "psychic"}, BadScenario, "'profile' is 'psychic', expected 'online' or 'recurring'"),
        ({"capacity": ["40%"]}, BadScenario, "there is no key 'capacity'; did you mean 'capacities'"),
    ],
)
def test_a_scenario_that_cannot_be_run_is_refused_in_one_sentence(
    values: dict[str, Any], error: type[TakeupError], message: str
) -> None:
    with pytest.raises(error, match=message):
        scenario(**values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"workload": "scann"}, "no caching workload 'scann'; did you mean 'scan'"),
        ({"disk_bytes_per_s": 0}, "give a bandwidth above zero"),
        ({"seed": -1}, "choose a whole number from zero up"),
        ({"capacities": ["0.1"]}, "a cache of 0 bytes holds nothing"),
        ({"capacities": ["1e30GB"]}, "more than any machine has"),
        ({"capacities": ["1e400"]}, "more than any machine has"),
        ({"capacities": ["1e15%"]}, "more than any machine has"),
        ({"trace": "nowhere.csv"}, "nowhere.csv: cannot be opened"),
    ],
)
def test_what_turns_out_to_be_impossible_is_said_too(values: dict[str, Any], message: str) -> None:
    with pytest.raises(TakeupError, match=message):
        run(scenario(**values), quiet=True)


@pytest.mark.parametrize("reasons", [False, True])
def test_a_trace_without_blocks_is_refused(tmp_path: Path, reasons: bool) -> None:
    (tmp_path / "t.csv").write_text("task,compute_s\nalone,1\n")

    with pytest.raises(BadTrace, match=r"t\.csv: holds no blocks, so there is nothing to cache"):
        run(scenario(verb="simulate", reasons=reasons, trace=str(tmp_path / "t.csv")), quiet=True)


# Comparing ----------------------------------------------------------------------------------------------------------


def expected_hits(data: Workload, policy: str, capacity_bytes: int) -> CachingResult:
    return simulate(find_policy(policy), data, EngineModel(capacity_bytes))


@pytest.mark.parametrize("worth_kernels", [0, 30_000])
def test_comparing_gives_a_row_for_each_policy_at_each_size(
    worth_kernels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "WORTH_KERNELS", worth_kernels)
    asked = scenario(policies=["lru", "lerc"], capacities=["20%", "600MB"])
    report = run(asked, quiet=True)
    data, _ = load(asked)
    sizes = [round(0.2 * data.working_set_bytes), 600_000_000]
    results = [expected_hits(data, policy, size) for size in sizes for policy in ("lru", "lerc")]

    assert [(row["policy"], row["hits"], row["evicted"]) for row in rows(report)] == [
        (result.policy, result.hit_share, result.num_evictions) for result in results
    ]
    assert report.title == "Caching: lru, lerc on scan"
    assert report.scenario == asked.model_dump()


def test_a_seed_makes_the_workload() -> None:
    reports = [run(scenario(seed=seed), quiet=True) for seed in (1, 1, 2)]

    assert reports[0] == reports[1]
    assert reports[0].tables != reports[2].tables


def test_a_task_table_is_compared_by_hand(jobs: str) -> None:
    report = run(scenario(trace=jobs, policies=["lru", "lrc", "lerc"], capacities=["2"]), quiet=True)

    # lru loses a when c comes; b is there, then both. lrc and lerc refuse nothing, and c has no reader: but it is the
    # newcomer, so one of the pair leaves all the same.
    assert [(row["policy"], row["hits"], row["effective"]) for row in rows(report)] == [
        ("lru", 3 / 4, 2 / 4),
        ("lrc", 3 / 4, 2 / 4),
        ("lerc", 3 / 4, 2 / 4),
    ]


def test_admission_keeps_the_pair(jobs: str) -> None:
    report = run(scenario(trace=jobs, policies=["lerc+admission", "dag", "belady"], capacities=["2"]), quiet=True)

    assert [row["effective"] for row in rows(report)] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("verb", ["compare", "simulate", "whatif"])
def test_an_event_log_is_replayed_under_other_policies(verb: str) -> None:
    path = DATA / "pagerank.eventlog.gz"
    report = run(scenario(verb=verb, trace=str(path), policies=["lru", "lerc"], capacities=["50%"]), quiet=True)
    data, _ = read_trace(path)
    results = [expected_hits(data, policy, round(data.working_set_bytes / 2)) for policy in ("lru", "lerc")]

    assert [row["hits"] for row in rows(report)] == [result.hit_share for result in results]
    assert any(note.startswith("Spark 4.3.0, application") for note in report.notes)


def test_the_settings_of_the_engine_reach_it(jobs: str) -> None:
    settings: dict[str, Any] = {"miss": "recompute", "cost_model": "all-or-nothing", "profile": "online"}
    report = run(scenario(trace=jobs, capacities=["2"], disk_bytes_per_s=1.0, **settings), quiet=True)
    data, _ = read_trace(Path(jobs))
    result = simulate(find_policy("lru"), data, EngineModel(2, disk_bytes_per_s=1.0, **settings))

    assert (rows(report)[0]["time"], rows(report)[0]["recomputed"]) == (result.makespan_s, result.num_recomputed)
    assert result.num_recomputed == 1


# Reasons ------------------------------------------------------------------------------------------------------------


def test_decisions_are_shown_with_their_reasons(jobs: str) -> None:
    report = run(
        scenario(verb="simulate", reasons=True, trace=jobs, policies=["lru"], capacities=["2"]),
        quiet=True,
    )

    # a leaves for c; to read a and b again, c leaves for a
    assert rows(report) == [
        {"decision": "evict", "block": "0", "reason": "unused for longest"},
        {"decision": "evict", "block": "2", "reason": "unused for longest"},
    ]
    assert report.tables[0].note == "the first 2 of 2 decisions"


def test_refusals_are_shown_too(jobs: str) -> None:
    report = run(
        scenario(verb="simulate", reasons=True, trace=jobs, policies=["lerc+admission"], capacities=["2"]), quiet=True
    )

    assert rows(report) == [{"decision": "refuse", "block": "2", "reason": "not enough bytes of lower rank"}]


def test_of_many_decisions_the_first_are_shown() -> None:
    report = run(scenario(verb="simulate", reasons=True), quiet=True)

    assert len(rows(report)) == 20
    assert report.tables[0].note.startswith("the first 20 of ")


# Again and elsewhere ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("values", [{"policies": ["lru", "dag"], "capacities": ["30%", "60%"]}, {"miss": "recompute"}])
def test_a_report_can_be_run_again(tmp_path: Path, values: Mapping[str, Any]) -> None:
    before = run(scenario(**values), quiet=True)
    before.save(tmp_path / "report.json")
    stored = Report.load(tmp_path / "report.json")
    after = run_again(stored.scenario, "report.json", quiet=True)

    assert after.tables == before.tables
    assert after.to_json() == before.to_json()


def test_a_trace_that_has_changed_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "tasks.csv"
    num_hits = []
    for num_readers in (2, 4):
        readers = "".join(f"t{place},a,,\n" for place in range(num_readers))
        path.write_text("task,inputs,outputs,output_bytes\n,,a,1\n" + readers)
        num_hits.append(rows(run(scenario(trace=str(path), capacities=["100%"]), quiet=True))[0]["hits"])

    assert num_hits == [1 / 2, 3 / 4]


def test_a_scenario_file_holds_a_scenario(tmp_path: Path) -> None:
    asked = scenario(policies=["lru", "lerc+admission"], capacities=["30%"], profile="online")

    assert validate(CachingScenario, tomllib.loads(to_toml(asked)), "file") == asked


def test_an_old_report_with_an_unknown_key_is_refused_by_name() -> None:
    with pytest.raises(BadScenario, match=r"report.json: there is no key 'polices'; did you mean 'policies'"):
        run_again({"verb": "compare", "workload": "scan", "polices": ["lru"]}, "report.json", quiet=True)


def test_progress_is_silent_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    run(scenario(), quiet=True)

    assert capsys.readouterr() == ("", "")


@pytest.mark.engine
def test_a_cluster_gives_the_report_of_one_process() -> None:
    distributed = pytest.importorskip("distributed", reason="needs the package 'distributed'")
    asked = scenario(policies=["lru", "lerc", "spark"], capacities=["30%", "60%"], plain=True)
    here = run(asked, quiet=True)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=None
    ) as cluster:
        there = run(asked, on=cluster.scheduler_address, quiet=True)

    assert json.loads(there.to_json()) == json.loads(here.to_json())
