"""A few of the fault points of all writers; CI runs a seeded tenth of them, and `make faults` all."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc to compile the fault library")

TESTS = Path(__file__).parent
SHARE = "0.01"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])}
    program = [sys.executable, "-m", "support.faults.lab", *words]
    return subprocess.run(program, env={**os.environ, **paths}, capture_output=True, text=True, check=False)


def num_points(table: str) -> int:
    found = re.search(r"^\| all \| (\d+) ", table, re.MULTILINE)
    assert found is not None, table
    return int(found[1])


def test_what_was_refused_never_happens_and_what_was_acknowledged_stays() -> None:
    found = run("--share", SHARE, "--seed", "1", "--writers", "journal,slurm,report,table,cell,plan,record,spilled")

    assert found.returncode == 0, found.stdout + found.stderr
    assert num_points(found.stdout) > 100


def test_templates_and_adapters_are_whole_or_not_there() -> None:
    pytest.importorskip("safetensors", reason="needs diffusion: pip install 'takeup[diffusion]'")
    pytest.importorskip("fastapi", reason="needs web: pip install 'takeup[web]'")
    found = run("--share", SHARE, "--seed", "1", "--writers", "template,adapter")

    assert found.returncode == 0, found.stdout + found.stderr
    assert num_points(found.stdout) > 10


def test_the_laboratory_finds_entries_that_a_buffer_writes_after_they_were_refused() -> None:
    found = run("--share", "0.1", "--seed", "1", "--writers", "buffered")

    assert found.returncode == 1
    assert re.search(r"buffered 1: fail \d+ ENOSPC.*: found", found.stdout)
