"""A report or a scenario file is enough to run the same thing again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from takeup.cli import COMMANDS, takeup
from takeup.core.report import Column, Report, Table
from takeup.errors import BadInput, BadScenario, UnknownName
from takeup.rerun import RUNNERS, run_scenario

SCENARIO = {"domain": "caching", "verb": "compare", "workload": "scan", "policies": ["lru", "lrc"], "seed": 3}
TOML = 'domain = "caching"\nverb = "simulate"\nworkload = "scan"\npolicies = ["dag"]\ncapacities = ["2%"]\nseed = 5\n'


@pytest.fixture
def report() -> Report:
    return run_scenario(dict(SCENARIO), "test", quiet=True)


def again(path: Path, *options: str) -> Result:
    return CliRunner().invoke(takeup, ["rerun", str(path), "--quiet", *options])


def test_a_report_run_again_has_the_same_numbers(report: Report, tmp_path: Path) -> None:
    report.save(tmp_path / "report.json")
    result = again(tmp_path / "report.json", "--json")

    assert result.exit_code == 0
    assert Report.from_json(result.stdout).tables == report.tables
    assert result.stderr == f"the same numbers as in {tmp_path / 'report.json'}\n"


def test_a_changed_number_is_a_finding(report: Report, tmp_path: Path) -> None:
    table = report.tables[0]
    changed = replace(table, rows=((*table.rows[0][:2], 0.123, *table.rows[0][3:]), *table.rows[1:]))
    replace(report, tables=(changed,)).save(tmp_path / "report.json")
    result = again(tmp_path / "report.json")

    assert result.exit_code == 1
    assert "changed since" in result.stderr
    assert table.title in result.stderr


def test_a_table_that_is_no_longer_there_is_a_finding(report: Report, tmp_path: Path) -> None:
    extra = Table("gone", (Column("x"),), ((1,),))
    replace(report, tables=(*report.tables, extra)).save(tmp_path / "report.json")
    result = again(tmp_path / "report.json")

    assert result.exit_code == 1
    assert result.stderr.endswith(": gone\n")


def test_tables_of_one_title_are_compared_each_with_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tables = tuple(Table("same title", (Column("x"),), ((number,),)) for number in (1, 2))
    twice = Report("two tables", "caching", SCENARIO, 1, tables)
    monkeypatch.setattr("takeup.rerun.run_scenario", lambda *arguments, **options: twice)
    twice.save(tmp_path / "report.json")

    assert again(tmp_path / "report.json").exit_code == 0


def test_a_scenario_file_is_run(tmp_path: Path) -> None:
    (tmp_path / "scan.toml").write_text(TOML)
    result = again(tmp_path / "scan.toml", "--json")
    report = Report.from_json(result.stdout)

    assert result.exit_code == 0
    assert (report.seed, report.scenario["capacities"]) == (5, ["2%"])
    assert report.tables[0].rows[0][0] == "dag"


def test_a_report_written_by_out_can_be_run_again(tmp_path: Path) -> None:
    (tmp_path / "scan.toml").write_text(TOML)
    again(tmp_path / "scan.toml", "--out", str(tmp_path / "out"))

    assert again(tmp_path / "out" / "report.json").exit_code == 0


@pytest.mark.parametrize(
    ("values", "error", "sentence"),
    [
        ({}, BadScenario, "somewhere: the key 'domain' is missing"),
        ({"domain": 3}, BadScenario, "the key 'domain' is missing"),
        ({"domain": "cachin"}, UnknownName, "no domain 'cachin'; did you mean 'caching'?"),
        ({"domain": "caching", "verb": "compare"}, BadScenario, "give either a workload by name or a trace file"),
        ({"domain": "caching", "verb": "compare", "polices": []}, BadScenario, "did you mean 'policies'?"),
        ({"domain": "papers", "paper": "lrcc"}, UnknownName, "no paper 'lrcc'; did you mean 'lrc'?"),
    ],
)
def test_a_scenario_nobody_can_run_is_refused(values: dict[str, object], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error) as refused:
        run_scenario(values, "somewhere", quiet=True)

    assert sentence in str(refused.value)


def test_a_file_that_is_no_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"half": ')
    result = again(tmp_path / "report.json")

    assert isinstance(result.exception, BadInput)
    assert str(tmp_path / "report.json") in str(result.exception)


def test_every_domain_on_the_command_line_can_be_run_again() -> None:
    domains = [name for name, (target, _) in COMMANDS.items() if target.endswith(f".{name}.commands:{name}")]

    assert domains
    assert set(domains) < set(RUNNERS)


def test_the_old_name_of_the_command_still_works(tmp_path: Path) -> None:
    named = [CliRunner().invoke(takeup, [name, str(tmp_path / "missing.json")]) for name in ("rerun", "run-again")]

    assert str(named[0].exception) == str(named[1].exception) != "None"
