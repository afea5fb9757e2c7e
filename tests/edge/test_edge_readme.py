"""The example in the README of edge runs, and does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import takeup.edge
from takeup.edge.engines import ENGINES

README = Path(str(takeup.edge.__file__)).with_name("README.md").read_text("utf-8")


def test_the_example_saves_energy_within_its_bound() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)  # our own text
    answer = names["answer"]

    assert isinstance(answer, takeup.edge.Answer)
    assert answer.bound_j is not None
    assert 0 < answer.saving_j <= answer.bound_j * (1 + 1e-9)


def test_every_policy_setting_and_engine_has_a_row() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", README, flags=re.MULTILINE))

    assert rows == {*takeup.edge.POLICIES, *takeup.edge.SETTINGS, *ENGINES}
