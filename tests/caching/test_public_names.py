"""The names that `takeup.caching` offers are what their modules hold, however they are imported."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import takeup.caching


def home_of(name: str) -> str:
    return next(home for home, names in takeup.caching._HOMES.items() if name in names)


def test_every_public_name_has_one_home() -> None:
    homes = [name for names in takeup.caching._HOMES.values() for name in names]

    assert sorted(homes) == sorted(takeup.caching.__all__)
    assert dir(takeup.caching) == sorted(takeup.caching.__all__)


@pytest.mark.parametrize("name", takeup.caching.__all__)
def test_a_public_name_is_what_its_module_holds(name: str) -> None:
    module = import_module(f"takeup.caching.{home_of(name)}")

    assert getattr(takeup.caching, name) is getattr(module, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'takeup.caching' has no attribute 'evict_all'"):
        takeup.caching.evict_all  # noqa: B018


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, takeup.caching; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert not {"numpy", "numba", "pyarrow", "scipy", "rich", "distributed", "pydantic"} & set(loaded)
