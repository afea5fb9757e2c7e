"""The architecture as a test: every import points down, and policies are pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from takeup.cli import COMMANDS

SOURCE = Path(__file__).parent.parent / "src" / "takeup"
PEERS = ("policies", "simulate", "engines", "traces", "report")
LEVELS = {"model": 0, "contract": 2, **dict.fromkeys(PEERS, 3), "experiment": 4, "commands": 5}
OWN_LEVELS: dict[str, dict[str, float]] = {
    "caching": {"groups": 1},
    "cluster": {"fleet": 1},
    "edge": {"energy": 1, "played": 1, "served": 1, "validate": 2, "solver": 3.5, "gym": 3.5},
    "serving": {"traffic": 1, "line": 2.5, "server": 3.5, "quality": 3.5},
    "streaming": {"chains": 1},
    "training": {"timing": 1},
}  # ARCHITECTURE.md says why
OUTSIDE = {"cli", "output", "again", "tour", "doctor", "papers", "core", "errors", "__init__", "__main__"}
SHARED = {"core", "errors"}
BELOW_COMMANDS = SHARED | {"output"}  # commands also print
CLOCKS_AND_CHANCE = {"datetime", "random", "secrets", "time", "uuid"}
FILES = {"glob", "io", "os", "pathlib", "shutil", "tempfile"}
PROCESSES = {"asyncio", "multiprocessing", "signal", "subprocess", "sys", "threading"}
NETWORK = {"http", "requests", "socket", "ssl", "urllib"}
IMPURE = CLOCKS_AND_CHANCE | FILES | PROCESSES | NETWORK
AREAS = sorted(path.stem for path in SOURCE.iterdir() if path.name != "__pycache__")
# A module named in a string, as in registries.
NAMED = re.compile(rf"takeup\.({'|'.join(AREAS)})(\.[a-z_0-9]+)*(:\w*)?")
DOMAINS = sorted(path.name for path in SOURCE.iterdir() if path.is_dir() and path.name not in {*OUTSIDE, "__pycache__"})


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module the source names, also inside functions and strings; for `from a import b` both `a` and `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and NAMED.fullmatch(str(node.value)):
            yield str(node.value).partition(":")[0]
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield "takeup.something by a relative name"
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in {"np.random", "numpy.random"}:
            yield "numpy.random"


def levels(domain: str) -> dict[str, float]:
    return LEVELS | OWN_LEVELS.get(domain, {})


def is_pure(domain: str, facet: str) -> bool:
    """Whatever stands below the peers, and the policies."""
    return domain in DOMAINS and (facet == "policies" or levels(domain).get(facet, 9) < LEVELS["policies"])


def violations(module: str, source: str) -> list[str]:
    """What is wrong with the imports of `module`, such as `caching.policies.lru`."""
    area, facet = [*module.split("."), ""][:2]
    found = dict.fromkeys(imports(ast.parse(source)))
    ours = [name.split(".")[1:] for name in found if name.startswith("takeup.")]
    wrong = [".".join(target) for target in ours if not is_allowed(area, facet, target)]
    if is_pure(area, facet):
        wrong += [name for name in found if name.split(".")[0] in IMPURE or name.startswith("numpy.random")]
    return [f"{module} imports {name}" for name in wrong]


def is_allowed(area: str, facet: str, target: list[str]) -> bool:
    if area in SHARED:
        return target[0] in SHARED
    if area not in DOMAINS or facet == "":  # cli, papers ... know domains; a package may gather its own names
        return area not in DOMAINS or target[0] in {area, *SHARED}
    if target[0] != area:
        return target[0] in (BELOW_COMMANDS if facet == "commands" else SHARED)
    if facet == "engines" and target[1:2] == ["policies"]:  # decisions are pure, so engines import them directly
        return True
    return len(target) == 1 or target[1] == facet or levels(area).get(target[1], 9) < levels(area).get(facet, -1)


def modules() -> dict[str, Path]:
    paths = {path.relative_to(SOURCE).with_suffix(""): path for path in SOURCE.rglob("*.py")}
    return {".".join(part for part in name.parts if part != "__init__"): path for name, path in paths.items()}


def test_every_import_points_down() -> None:
    wrong = [problem for name, path in modules().items() for problem in violations(name, path.read_text("utf-8"))]

    assert wrong == []


def test_only_the_known_modules_stand_beside_the_domains() -> None:
    assert {path.stem for path in SOURCE.glob("*.py")} <= OUTSIDE
    assert {"caching", "streaming"} <= set(DOMAINS)


@pytest.mark.parametrize("domain", DOMAINS)
def test_no_domain_has_a_facet_that_is_not_agreed(domain: str) -> None:
    names = {path.relative_to(SOURCE / domain).parts[0] for path in (SOURCE / domain).rglob("*.py")}

    assert {name.removesuffix(".py") for name in names} - {"__init__"} <= set(levels(domain))


@pytest.mark.parametrize("domain", [name for name in DOMAINS if name in COMMANDS])
def test_every_domain_on_the_command_line_has_all_facets(domain: str) -> None:
    names = {path.stem for path in (SOURCE / domain).iterdir()}

    assert set(levels(domain)) <= names
    assert (SOURCE / domain / "README.md").exists()


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("core.clock", "from takeup.caching.model import Task", "core.clock imports caching.model"),
        ("core.clock", "import takeup.output", "core.clock imports output"),
        ("errors", "from takeup import cli", "errors imports cli"),
        ("caching.model", "from takeup.caching.groups import Group", "caching.model imports caching.groups"),
        ("caching.groups", "from takeup.caching import contract", "caching.groups imports caching.contract"),
        ("streaming.chains.cell", "from takeup.streaming.contract import Solver", "streaming.chains.cell imports"),
        ("streaming.chains.cell", "import time", "streaming.chains.cell imports time"),
        ("streaming.model", "import takeup.streaming.chains", "streaming.model imports streaming.chains"),
        ("caching.simulate", "from takeup.caching.policies.lru import X", "caching.simulate imports caching.policies"),
        ("caching.simulate", "load('takeup.caching.policies.lru:X')", "caching.simulate imports caching.policies.lru"),
        ("caching.policies.lru", "f('takeup.caching.engines.local:X')", "caching.policies.lru imports caching.engines"),
        ("caching.policies.lru", "import takeup.caching.engines", "caching.policies.lru imports caching.engines"),
        (
            "caching.engines.local",
            "import takeup.caching.simulate.plain",
            "caching.engines.local imports caching.simulate",
        ),
        ("caching.report", "def f():\n  from takeup.caching.traces import x", "caching.report imports caching.traces"),
        ("caching.experiment", "import takeup.caching.commands", "caching.experiment imports caching.commands"),
        ("caching.experiment", "import takeup.output", "caching.experiment imports output"),
        ("caching.policies.lru", "from takeup.cluster import model", "caching.policies.lru imports cluster"),
        ("caching.commands", "import takeup.papers", "caching.commands imports papers"),
        ("caching.commands", "from ..papers import lrc", "caching.commands imports something by a relative name"),
        ("caching.policies.lru", "import time", "caching.policies.lru imports time"),
        ("caching.policies.fast.heap", "from pathlib import Path", "caching.policies.fast.heap imports pathlib"),
        ("caching.contract", "from os import path", "caching.contract imports os"),
        ("caching.groups", "import random", "caching.groups imports random"),
        ("caching.model", "import numpy as np\nx = np.random.rand()", "caching.model imports numpy.random"),
        ("caching.model", "from numpy.random import rand", "caching.model imports numpy.random"),
    ],
)
def test_a_violation_is_found_and_named(module: str, source: str, found: str) -> None:
    assert any(problem.startswith(found) for problem in violations(module, source))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("caching.policies.lru", "from takeup.caching.policies.base import Ranked\nimport math"),
        ("caching.engines.dask.client", "from takeup.caching.policies import find_policy"),
        ("caching.engines.dask.client", "config.get('takeup.dask.policy')"),
        ("caching.engines.local", "import time, pathlib\nfrom takeup.caching.groups import GroupTable"),
        (
            "caching.experiment",
            "from takeup.caching.policies import find_policy\nfrom takeup.core.seeds import Streams",
        ),
        ("streaming.simulate.tagged", "from takeup.streaming.chains import chain_of"),
        ("streaming.policies.riccati", "from takeup.streaming.chains.cell import ps_cell"),
        ("caching.commands", "from takeup.output import show\nfrom takeup.caching.experiment import run"),
        ("papers.lrc", "from takeup.caching.simulate.compiled.replay import replay"),
        ("caching", "from takeup.caching.traces import generate"),
    ],
)
def test_what_points_down_is_allowed(module: str, source: str) -> None:
    assert violations(module, source) == []
