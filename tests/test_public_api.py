"""Public names: sorted, documented, loaded lazily; and importing the package costs nothing."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from takeup import caching, cluster, edge
from takeup.cli import COMMANDS
from takeup.core.seeds import Streams

SOURCE = Path(__file__).parent.parent / "src"
HEAVY = {"numba", "numpy", "pandas", "pyarrow", "pydantic", "rich", "scipy", "vl_convert"}


def module_names() -> list[str]:
    paths = (path.relative_to(SOURCE).with_suffix("") for path in sorted(SOURCE.rglob("*.py")))
    names = [".".join(path.parts).removesuffix(".__init__") for path in paths]
    return [name for name in names if not name.endswith("__main__")]


MODULES = module_names()
DOMAINS = [f"takeup.{name}" for name in COMMANDS if (SOURCE / "takeup" / name / "__init__.pyi").exists()]


@pytest.mark.parametrize("name", DOMAINS)
def test_public_names_exist_and_are_documented(name: str) -> None:
    module = import_module(name)

    for entry in module.__all__:
        value = getattr(module, entry)
        if inspect.isfunction(value) or (inspect.isclass(value) and value.__module__.startswith("takeup")):
            assert inspect.getdoc(value), entry


# Lazy names -----------------------------------------------------------------------------------------------------------


def test_a_domain_lists_the_names_of_its_stub() -> None:
    assert {"Evict", "find_policy"} <= set(dir(import_module("takeup.caching")))


def outcome(program: str) -> str:
    """What a fresh Python prints when it runs the program."""
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("domain", DOMAINS)
def test_no_lazy_name_is_hidden_by_a_module_of_the_same_name(domain: str) -> None:
    module = import_module(domain)
    modules = {path.stem for path in Path(str(module.__file__)).parent.iterdir()}

    assert not modules & set(module.__all__)


@pytest.mark.parametrize("domain", DOMAINS)
def test_an_unknown_name_is_an_attribute_error(domain: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = import_module(domain).nothing


# Cost of importing ----------------------------------------------------------------------------------------------------


def loaded_by(program: str) -> set[str]:
    printed = outcome(f"import sys\n{program}\nprint('loaded:', *sys.modules)")
    return {name.partition(".")[0] for name in printed.rpartition("loaded:")[2].split()}


@pytest.mark.parametrize(
    "program",
    [
        "import takeup",
        "import takeup.errors, takeup.core.units, takeup.core.files",
        *(f"import {each}" for each in DOMAINS),
    ],
)
def test_importing_loads_nothing_heavy(program: str) -> None:
    assert loaded_by(program) & (HEAVY | {"click"}) == set()


HELP = ["--help", "--version", "caching --help", "caching compare --help", "streaming predict --help", "tour -h"]


@pytest.mark.parametrize("arguments", HELP)
def test_help_loads_nothing_heavy(arguments: str) -> None:
    program = f"""
from takeup.cli import main
sys.argv = "takeup {arguments}".split()
try:
    main()
except SystemExit:
    pass
"""
    assert loaded_by(program) & HEAVY == set()


def test_a_workload_is_generated_from_a_name_and_a_seed_in_every_domain() -> None:
    made = [caching.generate("zip", seed=1), cluster.generate("small", seed=1), edge.generate("paper", 1, 8)]
    again = [
        caching.generate("zip", np.random.default_rng(1)),
        cluster.generate("small", Streams(1)),
        edge.generate("paper", np.random.default_rng(1), 8),
    ]

    assert [repr(one) for one in made] == [repr(one) for one in again]
