"""The doctor names what is missing and how to get it, and is alarmed only about the core."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import import_module
from pathlib import Path
from threading import Thread

import pytest
from click.testing import CliRunner, Result

import takeup.doctor
from takeup.cli import takeup as commands
from takeup.core.extras import EXTRAS
from takeup.core.report import Report
from takeup.doctor import REQUIREMENTS, Requirement, ask_kubernetes, ask_slurm, examine

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


@pytest.fixture
def scontrol(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a program of that name first on the path, with this text as its script."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def write(script: str) -> None:
        (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "scontrol").chmod(0o755)

    return write


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ("echo 'Slurmctld(primary) at head is UP'", (True, "Slurmctld(primary) at head is UP")),
        ("echo 'Slurmctld(primary) at head is DOWN'; exit 1", (False, "Slurmctld(primary) at head is DOWN")),
        ("echo 'error: no configuration' >&2; exit 1", (False, "error: no configuration")),
        ("exec sleep 60", (False, "no controller answers within 1 s")),
    ],
)
def test_slurm_works_if_its_controller_answers(
    script: str, answer: tuple[bool, str], scontrol: Callable[[str], None]
) -> None:
    scontrol(script)

    assert ask_slurm() == answer


class ApiServer(BaseHTTPRequestHandler):
    """Answers 200 to the path that says whether it is ready, 404 to any other."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 404)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, *args: object, **kwargs: object) -> None:
        """Be silent."""


def test_kubernetes_works_if_its_api_server_is_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    assert ask_kubernetes()[0] is False
    with HTTPServer(("127.0.0.1", 0), ApiServer) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        (tmp_path / "config").write_text(
            f"{{current-context: c, contexts: [{{name: c, context: {{cluster: c, user: u}}}}], "
            f"clusters: [{{name: c, cluster: {{server: '{address}'}}}}], users: [{{name: u, user: {{}}}}]}}"
        )
        Thread(target=server.handle_request).start()

        assert ask_kubernetes() == (True, f"{address} is ready")

    works, said = ask_kubernetes()
    assert not works
    assert "refused" in said.lower()


def test_an_engine_that_does_not_answer_is_not_called_missing(
    scontrol: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol("echo 'Slurmctld(primary) at head is DOWN'; exit 1")
    monkeypatch.setattr("takeup.doctor.shutil.which", lambda program: program)
    report = Report.from_json(CliRunner().invoke(commands, ["doctor", "--json"]).stdout)
    states = {row[0]: row[1] for row in report.tables[0].rows}

    assert states["cluster engine slurm"] == "no answer"


@pytest.mark.parametrize("module", ["cluster.engines", "edge.engines"])
def test_every_engine_of_a_registry_is_examined(module: str) -> None:
    engines, domain = import_module(f"takeup.{module}").ENGINES, module.partition(".")[0]

    assert {f"{domain} engine {name}" for name in engines} <= {need.part for need in REQUIREMENTS}


def test_engines_without_a_registry_are_examined() -> None:
    engines = {"caching engine spark", "caching engine dask", "training engine pytorch", "serving engine diffusers"}

    assert engines <= {need.part for need in REQUIREMENTS}


def test_what_needs_root_says_so_to_everyone_else(monkeypatch: pytest.MonkeyPatch) -> None:
    need = Requirement("part", programs=("sh",), remedy="remedy", needs_root=True)
    monkeypatch.setattr("takeup.doctor.os.geteuid", lambda: 1000)
    ordinary = examine(need)
    monkeypatch.setattr("takeup.doctor.os.geteuid", lambda: 0)

    assert ordinary == (False, "missing: root")
    assert examine(need) == (True, "sh, root")


def test_namespaces_need_root_and_two_programs() -> None:
    needs = {need.part: need for need in REQUIREMENTS}
    namespaces = needs["edge link namespaces"]

    assert (namespaces.programs, namespaces.needs_root) == (("ip", "tc"), True)
