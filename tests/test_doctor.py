"""The doctor names what is missing and how to get it, and is alarmed only about the core."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import takeup.doctor
from takeup.caching.engines import ENGINES
from takeup.cli import takeup as commands
from takeup.core.report import Report
from takeup.doctor import NEEDS, Need, examine

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]


def examined_without(monkeypatch: pytest.MonkeyPatch, package: str) -> Result:
    real = takeup.doctor._version
    monkeypatch.setattr("takeup.doctor._version", lambda name: None if name == package else real(name))
    return CliRunner().invoke(commands, ["doctor", "--json"])


def test_what_is_there_is_named_with_its_version() -> None:
    works, found = examine(Need("tests", ("pytest",), "make test"))

    assert works
    assert found == f"pytest {pytest.__version__}"


def test_missing_packages_and_programs_are_named() -> None:
    works, found = examine(Need("part", ("pytest", "no-such-package"), "remedy", ("no-such-program",)))

    assert not works
    assert found == "missing: no-such-package, no-such-program"


def test_a_missing_extra_is_no_alarm_but_comes_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    result = examined_without(monkeypatch, "distributed")
    row = next(row for row in Report.from_json(result.stdout).tables[0].rows if "Dask" in str(row[0]))

    assert result.exit_code == 0
    assert row[1:] == ("missing", "missing: distributed", "pip install 'takeup[dask]'")


def test_a_broken_core_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    result = examined_without(monkeypatch, "numba")

    assert result.exit_code == 1
    assert Report.from_json(result.stdout).tables[0].rows[0][2] == "missing: numba"


def test_the_core_needs_what_the_project_depends_on() -> None:
    core = next(need for need in NEEDS if need.is_core)
    dependencies = {line.partition(">")[0] for line in PROJECT["dependencies"]}

    assert set(core.packages) == dependencies - {"click"}  # without click there is no doctor to ask


def test_every_remedy_with_an_extra_names_one_that_exists() -> None:
    extras = [need.remedy.partition("[")[2].partition("]")[0] for need in NEEDS if "[" in need.remedy]

    assert extras
    assert set(extras) <= set(PROJECT["optional-dependencies"])


def test_every_engine_is_examined() -> None:
    assert {f"caching engine {name}" for name in ENGINES} <= {need.part for need in NEEDS}
