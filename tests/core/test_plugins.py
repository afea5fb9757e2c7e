"""Policies of other packages are installed by entry points as the guide shows, and refused in one sentence."""

from __future__ import annotations

import importlib
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from command_line import Run, assert_one_sentence, rows_of
from takeup.caching import find_policy
from takeup.cluster.policies import find_policy as find_scheduler
from takeup.core.lazy import installed
from takeup.edge.policies import find_policy as find_allocation
from takeup.errors import BadInput, UnknownName
from takeup.training.pipelines.planners import find_policy as find_planner

GUIDE = (Path(__file__).parents[2] / "docs/guides/write-a-policy.md").read_text("utf-8")
BLOCKS = dict(re.findall(r"^```(toml|python)\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL))
GROUPS = ("caching", "cluster", "edge", "training")

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Install a package of one module into a folder on the path, as pip would; gone after the test."""
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    def put(project: str, module: str) -> None:
        about = tomllib.loads(project)["project"]
        name, _, _ = next(iter(next(iter(about["entry-points"].values())).values())).partition(":")
        folder = tmp_path / "site" / f"{name}-{about['version']}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n")
        lines = [
            f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
            for group, points in about["entry-points"].items()
        ]
        (folder / "entry_points.txt").write_text("\n".join(lines))
        (tmp_path / "site" / f"{name}.py").write_text(module)
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.invalidate_caches()

    return put


def package(domain: str, target: str) -> str:
    points = f'[project.entry-points."takeup.{domain}.policies"]\nmine = "{target}"\n'
    return f'[project]\nname = "other"\nversion = "1"\n{points}'


def test_the_package_of_the_guide_is_compared_with_ours(install: Install, run: Run) -> None:
    install(BLOCKS["toml"], BLOCKS["python"])
    options = ("--workload", "zip", "--capacity", "40%", "--quiet", "--json")
    rows = rows_of(run("caching", "compare", "lru,mru", *options))

    assert [row["policy"] for row in rows] == ["lru", "mru"]
    assert rows[0] != {**rows[1], "policy": "lru"}


@pytest.mark.parametrize(
    ("domain", "module", "find"),
    [
        ("cluster", "from takeup.cluster.policies import POLICIES\nX = POLICIES['fifo']\n", find_scheduler),
        ("edge", "from takeup.edge.policies import POLICIES\nX = POLICIES['greedy']\n", find_allocation),
        ("training", "from takeup.training.pipelines.planners import POLICIES\nX = POLICIES['gpipe']\n", find_planner),
    ],
)
def test_every_domain_takes_policies_of_other_packages(
    domain: str, module: str, find: Callable[[str], object], install: Install
) -> None:
    install(package(domain, "other:X"), module)

    assert find("mine") is not None


def test_a_name_of_ours_cannot_be_replaced(install: Install) -> None:
    install(package("caching", "other:X").replace("mine", "lru"), "raise RuntimeError('loaded')")

    assert find_policy("lru").name == "lru"


def test_a_package_that_cannot_be_loaded_is_named(install: Install, run: Run) -> None:
    install(package("caching", "other:X"), "raise RuntimeError('too old')")

    assert_one_sentence(run("caching", "compare", "mine"), "'mine' of the package other", "too old", "update or remove")


def test_an_object_that_is_no_policy_is_refused(install: Install) -> None:
    install(package("caching", "other:X"), "X = 3")

    with pytest.raises(BadInput, match=r"has no 'name'; docs/guides/write-a-policy\.md"):
        find_policy("mine")


def test_a_near_name_of_another_package_is_suggested(install: Install) -> None:
    install(package("training", "other:X"), "")

    with pytest.raises(UnknownName, match="did you mean 'mine'"):
        find_planner("mime")


def test_the_guide_lists_every_group(install: Install) -> None:
    assert re.findall(r"^\| `takeup\.(\w+)\.policies`", GUIDE, re.MULTILINE) == list(GROUPS)
    assert installed("caching") == {}
