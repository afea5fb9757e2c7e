"""The README of cluster, its concept page and its guide show what is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import takeup.cluster
from takeup.cluster.commands import cluster
from takeup.cluster.engines import ENGINES
from takeup.cluster.forecast import MODELS
from takeup.cluster.policies import POLICIES
from takeup.cluster.quota.allocator import Feedback, Goal, corrected
from takeup.cluster.traces import PRESETS

ROOT = Path(__file__).parents[2]
README = (Path(str(takeup.cluster.__file__)).parent / "README.md").read_text("utf-8")
CONCEPT = (ROOT / "docs/concepts/cluster.md").read_text("utf-8")


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(example, "README.md", "exec"), {})  # our own text

    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["fifo", "gfs"]


@pytest.mark.parametrize("name", [*POLICIES, *MODELS, *PRESETS, *ENGINES])
def test_everything_with_a_name_has_a_row(name: str) -> None:
    assert f"\n| `{name}` | " in README


@pytest.mark.parametrize("name", [*POLICIES, *PRESETS, *ENGINES])
def test_the_help_names_everything_that_can_be_named(name: str) -> None:
    assert re.search(rf"\b{re.escape(name)}(?![\w+])", cluster.help or "")


@pytest.mark.parametrize("name", MODELS)
def test_the_help_of_forecast_names_every_model(name: str) -> None:
    assert re.search(rf"\b{name}\b", cluster.commands["forecast"].help or "")


def test_every_verb_is_in_the_readme_and_in_the_guide() -> None:
    guide = (ROOT / "docs/guides/sell-idle-gpus.md").read_text("utf-8")
    verbs = set(cluster.commands)

    assert verbs == {"simulate", "compare", "whatif", "run", "offer", "benefit", "forecast"}
    assert all(f"takeup cluster {verb}" in guide for verb in verbs)
    assert all(f"`{verb}`" in README or f"`takeup cluster {verb}`" in README for verb in verbs)


def test_the_menu_worked_by_hand_is_the_one_that_is_printed() -> None:
    printed = (ROOT / "examples/spot_offers.out").read_text("utf-8")

    assert "left for 1 h  18  for 4 h   3" in printed
    assert "3 are left for four hours, and 18 for one" in " ".join(CONCEPT.split())


def test_the_coefficient_worked_by_hand_is_the_one_that_is_computed() -> None:
    after = corrected(Feedback(), Goal(0.9), 0.0, num_kept=16, num_broken=4, longest_wait_s=0.0)

    assert after.coefficient == pytest.approx(0.1 / 0.15)
    assert (after.num_kept, after.num_broken) == (0, 0)
    assert "1 · 0.1 / 0.15 = 0.67" in " ".join(CONCEPT.split())
