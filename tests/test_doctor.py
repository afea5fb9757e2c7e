"""The doctor names what is missing and how to get it, and is alarmed only about the core."""

from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import takeup.doctor
from takeup.cli import takeup as commands
from takeup.core.extras import EXTRAS
from takeup.core.report import Report
from takeup.doctor import REQUIREMENTS, Requirement, examine

PROJECT = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]


def examined_without(monkeypatch: pytest.MonkeyPatch, package: str) -> Result:
    real = takeup.doctor._version
    monkeypatch.setattr("takeup.doctor._version", lambda name: None if name == package else real(name))
    return CliRunner().invoke(commands, ["doctor", "--json"])


def test_what_is_there_is_named_with_its_version() -> None:
    works, found = examine(Requirement("tests", core=("pytest",)))

    assert works
    assert found == f"pytest {pytest.__version__}"


def test_missing_packages_and_programs_are_named() -> None:
    works, found = examine(Requirement("part", core=("pytest", "no-such-package"), programs=("no-such-program",)))

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
    core = next(need for need in REQUIREMENTS if need.core)
    dependencies = {line.partition(">")[0] for line in PROJECT["dependencies"]}

    assert set(core.packages) == dependencies


def test_every_extra_is_examined() -> None:
    assert {extra for need in REQUIREMENTS for extra in need.extras} | {"torch"} == set(EXTRAS)


def test_what_is_missing_can_be_got() -> None:
    assert all(need.how_to_get_it for need in REQUIREMENTS if need.packages or need.programs)


@pytest.mark.parametrize("module", ["caching.experiment", "cluster.engines", "edge.engines", "streaming.engines"])
def test_every_engine_of_a_registry_is_examined(module: str) -> None:
    engines, domain = import_module(f"takeup.{module}").ENGINES, module.partition(".")[0]

    assert {f"{domain} engine {name}" for name in engines} <= {need.part for need in REQUIREMENTS}


def test_engines_without_a_registry_are_examined() -> None:
    assert {"training engine pytorch", "serving engine diffusers"} <= {need.part for need in REQUIREMENTS}


def test_what_needs_root_says_so_to_everyone_else(monkeypatch: pytest.MonkeyPatch) -> None:
    need = Requirement("part", programs=("sh",), remedy="remedy", needs_root=True)
    monkeypatch.setattr("takeup.doctor.os.geteuid", lambda: 1000)
    ordinary = examine(need)
    monkeypatch.setattr("takeup.doctor.os.geteuid", lambda: 0)

    assert ordinary == (False, "missing: root")
    assert examine(need) == (True, "sh, root")


def test_the_ring_needs_nothing_and_its_namespaces_need_root_and_two_programs() -> None:
    needs = {need.part: need for need in REQUIREMENTS}
    ring, namespaces = needs["streaming engine dash"], needs["streaming link namespaces"]

    assert (ring.programs, ring.needs_root) == ((), False)
    assert (namespaces.programs, namespaces.needs_root) == (("ip", "tc"), True)
