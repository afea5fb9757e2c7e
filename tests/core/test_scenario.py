"""Scenario files: read, checked with one clear sentence, and written back."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field, ValidationError, field_validator, model_validator

from takeup.core.scenario import Scenario, load_scenario, to_toml, validate
from takeup.errors import BadScenario

BASE: dict[str, Any] = {"domain": "caching", "verb": "compare", "capacity_bytes": 10}


class Example(Scenario):
    capacity_bytes: int = Field(gt=0)
    disk_bytes_per_s: float = 1e8
    sizes: tuple[float, ...] = ()
    policy: Literal["lru", "lrc"] = "lru"
    warm: bool = False
    label: str | None = None

    @field_validator("sizes")
    @classmethod
    def at_most_three(cls, sizes: tuple[float, ...]) -> tuple[float, ...]:
        if len(sizes) > 3:
            raise ValueError("give at most three sizes")
        return sizes

    @model_validator(mode="after")
    def not_a_warm_lrc(self) -> Example:
        if self.warm and self.policy == "lrc":
            raise ValueError("lrc cannot start warm; set warm = false")
        return self


class Free(Scenario):
    text: str
    number: float
    whole: int
    flag: bool
    texts: tuple[str, ...]
    nested: tuple[tuple[int, ...], ...]


def problem_of(**changes: object) -> str:
    with pytest.raises(BadScenario) as caught:
        validate(Example, BASE | changes, "run.toml")
    return str(caught.value)


def test_a_file_becomes_a_scenario(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('domain = "caching"\nverb = "compare"\ncapacity_bytes = 10\nsizes = [1, 2.5]\n')

    scenario = validate(Example, load_scenario(path), str(path))

    assert scenario == Example(domain="caching", verb="compare", capacity_bytes=10, sizes=(1.0, 2.5))
    assert scenario.seed == 1


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b'\xef\xbb\xbfdomain = "caching"\n')

    assert load_scenario(path) == {"domain": "caching"}


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadScenario, match=r"cannot read scenario .*none\.toml: No such file"):
        load_scenario(tmp_path / "none.toml")


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xff\xfe")

    with pytest.raises(BadScenario, match=r"run\.toml: this is not a text file"):
        load_scenario(path)


@pytest.mark.parametrize(
    ("text", "place"),
    [("seed = 1\nverb compare\n", "line 2"), ("seed = 1\nverb =", "line 2"), ("a = 1\n\na = 2\n", "line 3")],
)
def test_a_file_that_is_not_toml_names_the_line(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)

    with pytest.raises(BadScenario, match=rf"run\.toml: this is not TOML: .*at {place}"):
        load_scenario(path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"capacity_bytes": -1}, "'capacity_bytes' is -1, expected greater than 0"),
        ({"seed": 1.5}, "'seed' is 1.5, expected a whole number, got a number with a fractional part"),
        ({"domain": 3}, "'domain' is 3, expected text"),
        ({"sizes": 3}, "'sizes' is 3, expected a list"),
        ({"sizes": [1, "x"]}, "'sizes.1' is 'x', expected a number, unable to parse string as a number"),
        ({"policy": "mru"}, "'policy' is 'mru', expected 'lru' or 'lrc'"),
        ({"warm": "perhaps"}, "'warm' is 'perhaps', expected true or false, unable to interpret input"),
        ({"sizes": [1, 2, 3, 4]}, "'sizes' is [1, 2, 3, 4]: give at most three sizes"),
    ],
)
def test_a_bad_value_is_named_with_what_was_expected(changes: dict[str, object], sentence: str) -> None:
    assert problem_of(**changes) == f"run.toml: {sentence}"


def test_a_long_value_is_cut_in_the_message() -> None:
    assert "'seed' is 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..., expected" in problem_of(seed="x" * 1000)


def test_a_contradiction_between_keys_is_told_in_the_words_of_the_model() -> None:
    message = problem_of(warm=True, policy="lrc")

    assert message.startswith("run.toml: ")
    assert message.endswith("lrc cannot start warm; set warm = false")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("capacity", "capacity_bytes"),
        ("capcity_bytes", "capacity_bytes"),
        ("disk", "disk_bytes_per_s"),
        ("seed_s", "seed"),
        ("polcy", "policy"),
    ],
)
def test_an_unknown_key_gets_the_key_that_was_meant(key: str, meant: str) -> None:
    assert f"there is no key {key!r}; did you mean {meant!r}? (known: domain, verb, seed," in problem_of(**{key: 1})


def test_an_unknown_key_like_no_other_gets_no_suggestion() -> None:
    assert "there is no key 'zzz' (known:" in problem_of(zzz=1)


def test_a_misspelt_required_key_is_reported_rather_than_the_one_it_leaves_missing() -> None:
    values = {"domain": "caching", "verb": "compare", "capacity": 3}

    with pytest.raises(BadScenario, match="no key 'capacity'; did you mean 'capacity_bytes'"):
        validate(Example, values, "run.toml")


def test_a_missing_key_is_named_with_the_line_to_add() -> None:
    with pytest.raises(BadScenario, match=r"--scenario: the key 'domain' is missing; add a line 'domain = \.\.\.'"):
        validate(Scenario, {"verb": "compare"}, "--scenario")


@pytest.mark.parametrize("changes", [{"capacity_bytes": "x\ny"}, {"sizes": ["a"] * 9}, {"policy": 3, "zzz": 1}])
def test_every_problem_is_one_line(changes: dict[str, object]) -> None:
    assert "\n" not in problem_of(**changes)


def test_a_scenario_cannot_be_changed() -> None:
    scenario = validate(Example, BASE, "run.toml")

    with pytest.raises(ValidationError, match="frozen"):
        scenario.seed = 2


@settings(deadline=None)
@given(
    st.builds(
        Free,
        domain=st.text(),
        verb=st.text(),
        seed=st.integers(),
        text=st.text(),
        number=st.floats(allow_nan=False),
        whole=st.integers(),
        flag=st.booleans(),
        texts=st.lists(st.text(), max_size=3).map(tuple),
        nested=st.lists(st.lists(st.integers(), max_size=2).map(tuple), max_size=2).map(tuple),
    )
)
def test_a_scenario_comes_back_from_toml_unchanged(scenario: Free) -> None:
    assert validate(Free, tomllib.loads(to_toml(scenario)), "run.toml") == scenario


def test_toml_is_written_the_way_a_person_would() -> None:
    scenario = validate(Example, BASE | {"sizes": [1, 2.5], "warm": True, "policy": "lru"}, "run.toml")

    assert to_toml(scenario) == (
        'domain = "caching"\nverb = "compare"\nseed = 1\ncapacity_bytes = 10\n'
        'disk_bytes_per_s = 100000000.0\nsizes = [1.0, 2.5]\npolicy = "lru"\nwarm = true\n'
    )


def test_keys_and_text_with_odd_signs_are_quoted() -> None:
    class Odd(Scenario):
        note: str = Field(default='"\\\n\x7f\t', alias="note")

    written = to_toml(Odd(domain="a b", verb="é"))

    assert tomllib.loads(written) == {"domain": "a b", "verb": "é", "seed": 1, "note": '"\\\n\x7f\t'}


def test_a_value_a_scenario_file_cannot_hold_is_refused_by_key() -> None:
    class WithTable(Scenario):
        limits: dict[str, int]

    with pytest.raises(BadScenario, match=r"'limits' is .* which a scenario file cannot hold"):
        to_toml(WithTable(domain="a", verb="b", limits={"x": 1}))
