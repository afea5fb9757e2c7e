"""Errors of users: one sentence each, the nearest name, and the same message in another process."""

from __future__ import annotations

import pickle

import pytest

import takeup.errors
from takeup.errors import BadInput, BadScenario, BadTrace, MissingEngine, OutputFailed, TakeupError, UnknownName


def test_the_hierarchy_is_as_drawn() -> None:
    errors = [value for value in vars(takeup.errors).values() if isinstance(value, type)]
    parents = {error.__name__: error.__base__ for error in errors if issubclass(error, Exception)}

    assert parents == {
        "BadInput": TakeupError,
        "BadScenario": BadInput,
        "BadTrace": BadInput,
        "MissingEngine": TakeupError,
        "OutputFailed": TakeupError,
        "TakeupError": Exception,
        "UnknownName": TakeupError,
    }


def test_an_unknown_name_carries_the_nearest_known_one() -> None:
    message = str(UnknownName("policy", "lrcc", ["lru", "lrc", "lerc"]))

    assert message == "no policy 'lrcc'; did you mean 'lrc'? (known: lru, lrc, lerc)"


def test_a_name_that_resembles_nothing_gets_no_suggestion() -> None:
    assert str(UnknownName("policy", "zzz", iter(["lru", "lrc"]))) == "no policy 'zzz' (known: lru, lrc)"


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({}, "trace.csv: is empty"),
        ({"line": 3}, "trace.csv, line 3: is empty"),
        ({"column": "key"}, "trace.csv, column 'key': is empty"),
        ({"line": 3, "column": "key"}, "trace.csv, line 3, column 'key': is empty"),
    ],
)
def test_a_bad_trace_names_the_spot(where: dict[str, object], message: str) -> None:
    assert str(BadTrace("trace.csv", "is empty", **where)) == message  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "error",
    [
        TakeupError("one"),
        BadInput("two"),
        BadScenario("three"),
        BadTrace("file", "four", line=4, column="c"),
        MissingEngine("five"),
        OutputFailed("six"),
        UnknownName("policy", "lrcc", ["lrc"]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_travels_between_processes_as_its_message(error: TakeupError) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert isinstance(copy, TakeupError)


def test_notes_travel_too() -> None:
    error = BadInput("sentence")
    error.add_note("while reading the second file")

    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while reading the second file"]
