"""The architecture as a test: decisions are pure, imports point down, and domains do not import each other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from takeup.cli import COMMANDS

SOURCE = Path(__file__).parent.parent / "src" / "takeup"
# Rooms (packages or modules of a domain) with data, contracts and decisions: state in, decisions out. The others act.
PURE = {
    "caching": {"contract", "groups", "model", "policies"},
    "cluster": {"contract", "forecast", "model", "policies", "quota", "scheduling"},
    "edge": {"contract", "energy", "model", "policies", "results", "solvers", "validate"},
    "serving": {
        "contract",
        "model",
        "scheduling",
        "diffusion.contract",
        "diffusion.policies",
        "editing.contract",
        "editing.planner",
    },
    "streaming": {"advice", "chains", "contract", "model", "numerics", "solvers"},
    "training": {
        "pipelines.contract",
        "pipelines.planners",
        "pipelines.profile",
        "pipelines.schedule",
        "pipelines.timing",
        "stragglers.contract",
        "stragglers.detect",
        "stragglers.locate",
        "stragglers.remedy",
    },
}
SPLIT = {"pipelines", "stragglers", "diffusion", "editing"}  # subjects with rooms of their own
TOP = ("experiment", "commands", "file_kinds")  # above all other rooms of a domain, in this order
OUTSIDE = {
    "cli",
    "completion",
    "output",
    "rerun",
    "tour",
    "tryfile",
    "example",
    "doctor",
    "papers",
    "core",
    "errors",
    "scenes",
    "samples",
}
OUTSIDE |= {"__init__", "__main__"}
SHARED = {"core", "errors"}
CLOCKS_AND_CHANCE = {"datetime", "random", "secrets", "time", "uuid"}
FILES = {"glob", "io", "os", "pathlib", "shutil", "tempfile"}
PROCESSES = {"asyncio", "multiprocessing", "signal", "subprocess", "sys", "threading"}
NETWORK = {"http", "requests", "socket", "ssl", "urllib"}
IMPURE = CLOCKS_AND_CHANCE | FILES | PROCESSES | NETWORK
AREAS = sorted(path.stem for path in SOURCE.iterdir() if path.name != "__pycache__")
# A module named in a string, as in registries.
NAMED = re.compile(rf"takeup\.({'|'.join(AREAS)})(\.[a-z_0-9]+)*(:\w*)?")


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module the source names, also inside functions and strings; for `from a import b` both `a` and `a.b`.

    A random generator that is an argument is no source of chance, so its type may be imported.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and NAMED.fullmatch(str(node.value)):
            yield str(node.value).partition(":")[0]
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield "takeup.something by a relative name"
        elif isinstance(node, ast.ImportFrom) and not is_generator_type(node):
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in {"np.random", "numpy.random"}:
            yield "numpy.random"


def is_generator_type(node: ast.ImportFrom) -> bool:
    return node.module == "numpy.random" and [alias.name for alias in node.names] == ["Generator"]


def room_of(parts: list[str]) -> str:
    """The room of `training.stragglers.detect.detector` is `stragglers.detect`; that of a package itself is empty."""
    return ".".join(parts[1:3]) if parts[1:] and parts[1] in SPLIT else "".join(parts[1:2])


def is_pure(area: str, room: str) -> bool:
    return room in PURE.get(area, ())


def level(room: str) -> int:
    return TOP.index(room) if room in TOP else -1


def violations(module: str, source: str) -> list[str]:
    """What is wrong with the imports of `module`, such as `caching.policies.lru`."""
    area, *_ = parts = module.split(".")
    found = dict.fromkeys(imports(ast.parse(source)))
    ours = [name.split(".")[1:] for name in found if name.startswith("takeup.")]
    wrong = [".".join(target) for target in ours if not is_allowed(area, room_of(parts), target)]
    if is_pure(area, room_of(parts)):
        wrong += [name for name in found if name.split(".")[0] in IMPURE or name.startswith("numpy.random")]
    return [f"{module} imports {name}" for name in wrong]


def is_allowed(area: str, room: str, target: list[str]) -> bool:
    if area in SHARED:
        return target[0] in SHARED
    if area not in PURE:  # cli, papers, tour ... know domains
        return True
    if target[0] != area:
        return target[0] in (SHARED | {"output", "scenes"} if room == "commands" else SHARED)
    other = room_of(target)
    if room in {other, ""} or other == "" or other in SPLIT:  # a package may name what it exports
        return True
    return is_pure(area, other) if is_pure(area, room) else level(other) <= level(room)


def modules() -> dict[str, Path]:
    paths = {path.relative_to(SOURCE).with_suffix(""): path for path in SOURCE.rglob("*.py")}
    return {".".join(part for part in name.parts if part != "__init__"): path for name, path in paths.items()}


def test_imports_point_down_and_decisions_are_pure() -> None:
    wrong = [problem for name, path in modules().items() for problem in violations(name, path.read_text("utf-8"))]

    assert wrong == []


def test_only_the_known_modules_are_next_to_the_domains() -> None:
    areas = {path.stem for path in SOURCE.iterdir() if path.suffix in {"", ".py"} and path.name != "__pycache__"}

    assert areas - OUTSIDE == set(PURE)


@pytest.mark.parametrize("domain", PURE)
def test_every_pure_room_exists(domain: str) -> None:
    rooms = {room_of(name.split(".")) for name in modules() if name.split(".")[0] == domain}

    assert rooms >= PURE[domain]


@pytest.mark.parametrize("domain", [name for name in PURE if name in COMMANDS])
def test_every_domain_has_a_page_and_a_contract_to_open_first(domain: str) -> None:
    rooms = {room_of(name.split(".")) for name in modules() if name.split(".")[0] == domain}

    assert (SOURCE / domain / "README.md").exists()
    assert any(room.endswith("contract") for room in rooms)
    assert set(TOP) <= rooms


@pytest.mark.parametrize("domain", PURE)
def test_rooms_do_not_import_each_other_in_a_circle(domain: str) -> None:
    edges: dict[str, set[str]] = {}
    for name, path in modules().items():
        parts = name.split(".")
        if parts[0] == domain and room_of(parts):
            named = (target.split(".")[1:] for target in imports(ast.parse(path.read_text("utf-8"))))
            rooms = {room_of(target) for target in named if target[:1] == [domain]}
            edges.setdefault(room_of(parts), set()).update(rooms - {"", room_of(parts)} - SPLIT)

    for room in edges:
        assert room not in reachable(room, edges), f"{room} is imported by a room that it imports"


def test_every_protocol_of_a_contract_is_a_type_of_other_modules() -> None:
    trees = {name: ast.parse(path.read_text("utf-8")) for name, path in modules().items()}
    used = {name for tree in trees.values() for name in names_from_contracts(tree)}
    protocols = {
        f"takeup.{name}.{node.name}"
        for name, tree in trees.items()
        if name.split(".")[-1] == "contract"
        for node in tree.body
        if isinstance(node, ast.ClassDef) and "Protocol" in map(ast.unparse, node.bases)
    }

    inside = {
        f"takeup.{name}.{node.id}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Name)
    }
    assert len(protocols) > 10
    assert protocols - used - inside == set()


def names_from_contracts(tree: ast.Module) -> Iterator[str]:
    """Names of contracts in a module: `from a.contract import X`, or `contract.X` after `from a import contract`."""
    packages = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).endswith(".contract"):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and "contract" in {alias.name for alias in node.names}:
            packages.append(node.module)
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} if packages else set()
    yield from (f"{package}.contract.{name}" for package in packages for name in attributes)


def reachable(room: str, edges: dict[str, set[str]]) -> set[str]:
    """All rooms that a room imports, directly or through others."""
    found: set[str] = set()
    waiting = [room]
    while waiting:
        new = edges.get(waiting.pop(), set()) - found
        found |= new
        waiting.extend(new)
    return found


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("core.clock", "from takeup.caching.model import Task", "core.clock imports caching.model"),
        ("core.clock", "import takeup.output", "core.clock imports output"),
        ("errors", "from takeup import cli", "errors imports cli"),
        ("streaming.chains.cell", "from takeup.streaming.simulate import x", "streaming.chains.cell imports"),
        ("streaming.chains.cell", "import time", "streaming.chains.cell imports time"),
        ("caching.policies.lru", "f('takeup.caching.engines.local:X')", "caching.policies.lru imports caching.engines"),
        ("caching.policies.lru", "import takeup.caching.engines", "caching.policies.lru imports caching.engines"),
        ("caching.engines.local", "import takeup.caching.experiment", "caching.engines.local imports caching.exp"),
        ("caching.report", "def f():\n  import takeup.caching.commands", "caching.report imports caching.commands"),
        ("caching.experiment", "import takeup.caching.commands", "caching.experiment imports caching.commands"),
        ("caching.experiment", "import takeup.output", "caching.experiment imports output"),
        ("caching.policies.lru", "from takeup.cluster import model", "caching.policies.lru imports cluster"),
        ("caching.commands", "import takeup.papers", "caching.commands imports papers"),
        ("caching.commands", "from ..papers import lrc", "caching.commands imports something by a relative name"),
        ("caching.contract", "from os import path", "caching.contract imports os"),
        ("caching.groups", "import random", "caching.groups imports random"),
        ("caching.model", "import numpy as np\nx = np.random.rand()", "caching.model imports numpy.random"),
        ("caching.model", "from numpy.random import rand", "caching.model imports numpy.random"),
        ("training.stragglers.locate.links", "import takeup.training.stragglers.watch", "training.stragglers.locate"),
        ("serving.editing.planner.cost_model", "import takeup.serving.diffusion.engine", "serving.editing.planner"),
    ],
)
def test_a_violation_is_found_and_named(module: str, source: str, found: str) -> None:
    assert any(problem.startswith(found) for problem in violations(module, source))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("caching.policies.lru", "from takeup.caching.policies.base import Ranked\nimport math"),
        ("caching.policies.lru", "from takeup.caching.groups import GroupTable"),
        ("caching.engines.dask.client", "from takeup.caching.policies import find_policy"),
        ("caching.engines.dask.client", "config.get('takeup.dask.policy')"),
        ("caching.engines.local", "import time, pathlib\nfrom takeup.caching.groups import GroupTable"),
        ("caching.experiment", "from takeup.caching.policies import x\nfrom takeup.core.seeds import Streams"),
        ("streaming.simulate.tagged", "from takeup.streaming.chains import chain_of"),
        ("streaming.contract", "from numpy.random import Generator"),
        ("caching.commands", "from takeup.output import show\nfrom takeup.caching.experiment import run"),
        ("papers.lrc", "from takeup.caching.simulate.compiled.replay import replay"),
        ("caching", "from takeup.caching.traces import generate"),
    ],
)
def test_what_points_down_is_allowed(module: str, source: str) -> None:
    assert violations(module, source) == []
