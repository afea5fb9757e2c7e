"""The README of cluster shows what is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import takeup.cluster
from takeup.cluster.policies import POLICIES

README = (Path(takeup.cluster.__file__).parent / "README.md").read_text("utf-8")


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})  # our own text

    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["fifo", "gfs"]


def test_every_policy_it_names_exists() -> None:
    (row,) = re.findall(r"\| \[policies\]\(policies\) \|(.*)\|", README)

    assert set(re.findall(r"`(\w+)`", row)) <= set(POLICIES)
