"""Which extra installs which package: the table agrees with the project, and a missing package is one sentence."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from takeup.core import extras
from takeup.core.extras import EXTRAS, explain, lacking, need, packages
from takeup.errors import MissingEngine

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
CONTROLLERS = (
    "takeup.cluster.engines.slurm",
    "takeup.cluster.engines.kubernetes",
    "takeup.cluster.commands",
    "takeup.cluster.experiment",
    "takeup.training.stragglers.watch.job",
    "takeup.caching.engines.spark",
    "takeup.caching.experiment",
)


def required(extra: str) -> set[str]:
    """The packages of an extra in pyproject.toml, with those of extras that it includes."""
    names: set[str] = set()
    for line in PROJECT["project"]["optional-dependencies"][extra]:
        name, included = re.match(r"([\w-]+)(?:\[([\w,]+)\])?", line).groups()  # type: ignore[union-attr]
        names |= set().union(*map(required, included.split(","))) if name == "takeup" else {name}
    return names


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The modules that are missing: what is added to the set."""
    gone: set[str] = set()
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in gone else object())
    return gone


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_table_says_what_the_project_says(extra: str) -> None:
    assert set(packages([extra])) == required(extra)


def test_every_extra_of_the_project_is_in_the_table_or_a_set_of_others() -> None:
    assert set(PROJECT["project"]["optional-dependencies"]) == set(EXTRAS) | {"all", "tour"}
    assert required("all") == set(packages(EXTRAS))


def test_nothing_is_said_where_nothing_is_missing(without: set[str]) -> None:
    need("takeup serve", "web", "diffusion")

    assert lacking("takeup serve", "web", "diffusion") == ""


def test_all_that_is_missing_is_in_one_sentence(without: set[str]) -> None:
    without |= {"uvicorn", "PIL", "torch"}

    with pytest.raises(MissingEngine) as raised:
        need("takeup serve", "web", "diffusion", "ray")

    assert str(raised.value) == (
        "takeup serve needs the packages 'pillow', 'uvicorn', 'torch'; run pip install 'takeup[web,diffusion]'"
    )


def test_a_failed_import_is_explained_by_its_module() -> None:
    error = ModuleNotFoundError("No module named 'yaml.reader'", name="yaml.reader")

    assert str(explain(error, "a kubeconfig")) == (
        "a kubeconfig needs the package 'pyyaml'; run pip install 'takeup[k8s]'"
    )


def test_a_module_of_no_extra_is_not_explained() -> None:
    assert explain(ModuleNotFoundError("no name")) is None
    assert explain(ModuleNotFoundError("No module named 'takeup.nothing'", name="takeup.nothing")) is None


BLOCKED = """
import sys
blocked = {"pyarrow", "vl_convert"}
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Block())
"""


def ran(program: str, folder: Path) -> str:
    """What a fresh Python without charts and trace files prints."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + program], capture_output=True, text=True, check=False, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_controllers_need_neither_charts_nor_trace_files(tmp_path: Path) -> None:
    assert ran(f"from importlib import import_module\nfor name in {CONTROLLERS}: import_module(name)", tmp_path) == ""


def test_without_charts_a_command_gives_its_numbers_and_says_how_to_get_charts(tmp_path: Path) -> None:
    program = """
from takeup.cli import takeup
takeup.main(["streaming", "predict", "--out", "out"], prog_name="takeup", standalone_mode=False)
"""
    # A missing package is found by its specification as well.
    printed = ran(
        program.replace("from", "import takeup.core.extras as e; e.find_spec = lambda name: None\nfrom", 1), tmp_path
    )

    assert printed.count("a chart needs the package 'vl-convert-python'; run pip install 'takeup[charts]'") == 1
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.json", "report.html"}
    assert "<script" not in (tmp_path / "out" / "report.html").read_text()


def test_a_table_that_needs_pyarrow_says_so(tmp_path: Path, without: set[str]) -> None:
    from takeup.core.trace import read_table

    without.add("pyarrow")
    (tmp_path / "table.parquet").write_bytes(b"PAR1")

    with pytest.raises(MissingEngine, match=r"table\.parquet needs the package 'pyarrow'; run pip install"):
        read_table(tmp_path / "table.parquet", ())
