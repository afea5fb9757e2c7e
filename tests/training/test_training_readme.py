"""The README of training is true: its example runs, every planner has a row, and importing costs nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import takeup.training
from takeup.training import commands

README = Path(str(takeup.training.__file__)).with_name("README.md").read_text("utf-8")


def test_the_example_prints_what_adapting_gains(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})  # our own text

    printed = capsys.readouterr().out
    assert "1.290 s becomes 0.770 s, and no order takes less than 0.770 s" in printed
    assert "0F0,0F1,0F2" in printed


def test_every_planner_has_a_row_and_is_named_by_the_command() -> None:
    planners = README.split("## Planners")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \|", planners, flags=re.MULTILINE)

    assert rows == list(takeup.training.POLICIES)
    assert all(name in str(commands.training.help) for name in rows)


def test_importing_the_package_loads_nothing_heavy() -> None:
    program = "import sys, takeup.training; print(*({'numpy', 'scipy', 'numba', 'click'} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "\n"
