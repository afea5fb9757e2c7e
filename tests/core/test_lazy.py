"""What is named is imported when it is used, and not before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from takeup.core.lazy import find, lazy_names, load
from takeup.errors import UnknownName


def test_a_target_is_the_attribute_of_its_module() -> None:
    assert load("json:dumps") is json.dumps


def test_a_known_name_is_loaded() -> None:
    assert find("codec", "json", {"json": "json:loads"}) is json.loads


def test_an_unknown_name_is_answered_with_the_nearest_and_loads_nothing() -> None:
    targets = {"json": "no_such_module:loads"}

    with pytest.raises(UnknownName, match=r"no codec 'jsn'; did you mean 'json'\? \(known: json\)"):
        find("codec", "jsn", targets)


@pytest.fixture
def package(tmp_path: Path) -> str:
    """The file of a package whose stub names two classes of `json`."""
    stub = "from json.encoder import JSONEncoder as JSONEncoder\nfrom json.decoder import JSONDecoder as JSONDecoder\n"
    (tmp_path / "__init__.pyi").write_text(stub)
    return str(tmp_path / "__init__.py")


def test_a_package_finds_its_names_through_its_stub(package: str) -> None:
    get, names, public = lazy_names("json", package)

    assert get("JSONDecoder") is json.JSONDecoder
    assert names() == public == ["JSONDecoder", "JSONEncoder"]


def test_a_package_has_no_other_names(package: str) -> None:
    get, _, _ = lazy_names("json", package)

    with pytest.raises(AttributeError, match="module 'json' has no attribute 'dumps'"):
        get("dumps")
