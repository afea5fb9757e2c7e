"""Reports: what they refuse, what they hold, and that JSON brings them back unchanged."""

from __future__ import annotations

import errno
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.core.report import SCHEMA_VERSION, Cell, Check, Column, Report, Series, Table
from takeup.errors import BadInput, OutputFailed

finite = st.floats(allow_nan=False, allow_infinity=False)
cells: st.SearchStrategy[Cell] = st.one_of(st.none(), st.booleans(), st.integers(), finite, st.text(max_size=8))
names = st.text(max_size=8)
columns = st.builds(Column, names, names, st.integers(0, 9))
checks = st.builds(
    Check,
    names,
    st.none() | finite | names,
    st.none() | finite | names,
    names,
    st.booleans(),
    st.sampled_from(["paper", "unverified", "bar", "measured"]),
    st.none() | finite,
    names,
    st.sampled_from(["near", "at least", "at most"]),
)
scenarios = st.dictionaries(names, cells | st.lists(cells, max_size=3), max_size=3)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    heads = tuple(draw(st.lists(columns, max_size=3)))
    row = st.tuples(*(cells for _ in heads))
    return Table(draw(names), heads, tuple(draw(st.lists(row, max_size=3))), draw(names))


@st.composite
def series(draw: st.DrawFn) -> Series:
    keys = ["x", "y", "colour", "facet", "x_end"]
    row = st.fixed_dictionaries(dict.fromkeys(keys, cells))
    kind: Any = draw(st.sampled_from(["line", "bar", "point", "step", "span"]))
    x_end = "x_end" if kind == "span" else None
    rows = tuple(draw(st.lists(row, max_size=3)))
    colour, facet = draw(st.sampled_from([None, "colour"])), draw(st.sampled_from([None, "facet"]))
    return Series(draw(names), "x", "y", rows, colour, facet, draw(names), draw(names), kind, draw(names), x_end)


reports = st.builds(
    Report,
    names,
    names,
    scenarios,
    st.integers(),
    st.lists(tables(), max_size=2).map(tuple),
    st.lists(series(), max_size=2).map(tuple),
    st.lists(checks, max_size=2).map(tuple),
    st.lists(names, max_size=2).map(tuple),
    names,
    names,
    names,
)


def small(**changes: Any) -> Report:
    values: dict[str, Any] = {"title": "Small", "domain": "caching", "scenario": {"policy": "lru"}, "seed": 1}
    return Report(**(values | changes))


def altered(**changes: object) -> str:
    return json.dumps(json.loads(small(checks=(Check.near("n", 1.0, 1.0, 0.1),)).to_json()) | changes)


@settings(deadline=None)
@given(reports)
def test_a_report_comes_back_from_json_unchanged(report: Report) -> None:
    text = report.to_json()

    assert Report.from_json(text) == report
    assert Report.from_json(text).to_json() == text


def test_equal_reports_are_equal_bytes_whatever_the_order_of_the_scenario() -> None:
    forwards, backwards = small(scenario={"a": 1, "b": 2}), small(scenario={"b": 2, "a": 1})

    assert forwards.to_json() == backwards.to_json()


def test_json_begins_with_the_schema_and_follows_the_declared_order() -> None:
    keys = list(json.loads(small().to_json()))

    assert keys[:4] == ["schema_version", "title", "domain", "scenario"]
    assert keys[-3:] == ["version", "created", "machine"]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_refused_by_place(number: float) -> None:
    report = small(tables=(Table("t", (Column("a"),), ((number,),)),))

    with pytest.raises(BadInput, match=r"report\.tables\[0\]\.rows\[0\]\[0\]: .* use None"):
        report.to_json()


def test_a_value_json_cannot_hold_is_refused_by_place() -> None:
    with pytest.raises(BadInput, match=r"report\.scenario\.when: a set cannot be written"):
        small(scenario={"when": {1}}).to_json()


def test_numpy_numbers_are_written_as_plain_numbers() -> None:
    row: Any = (np.int64(3), np.float64(0.5), np.bool_(True))
    report = small(tables=(Table("t", (Column("a"), Column("b"), Column("c")), (row,)),))

    assert Report.from_json(report.to_json()).tables[0].rows == ((3, 0.5, True),)


def test_a_table_row_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(BadInput, match="table 't': row 1 has 2 cells for 1 columns"):
        Table("t", (Column("a"),), ((1,), (1, 2)))


@pytest.mark.parametrize("missing", ["x", "y", "policy", "engine"])
def test_a_series_row_without_a_named_key_is_refused(missing: str) -> None:
    row: dict[str, Cell] = {"x": 1, "y": 2, "policy": "lru", "engine": "dask"}
    del row[missing]

    with pytest.raises(BadInput, match=f"series 's': row 0 has no key '{missing}'"):
        Series("s", "x", "y", (row,), colour="policy", facet="engine")


@pytest.mark.parametrize(
    ("check", "holds"),
    [
        (Check.near("n", 1.1, 1.0, 0.2), True),
        (Check.near("n", 0.75, 1.0, 0.25), True),
        (Check.near("n", 1.3, 1.0, 0.2), False),
        (Check.near("n", None, 1.0, 0.2), False),
        (Check.at_least("n", 2.0, 2.0), True),
        (Check.at_least("n", 1.9, 2.0), False),
        (Check.at_least("n", None, 2.0), False),
        (Check.at_most("n", 2.0, 2.0), True),
        (Check.at_most("n", 2.1, 2.0), False),
        (Check.at_most("n", None, 2.0), False),
    ],
)
def test_checks_compare_as_their_names_say(check: Check, holds: bool) -> None:
    assert check.holds is holds


def test_a_report_holds_when_every_verified_check_holds() -> None:
    good, bad = Check.near("n", 1, 1, 0), Check.near("n", 9, 1, 0)
    remembered = Check.near("n", 9, 1, 0, source="unverified")

    assert small().holds
    assert small(checks=(good, remembered)).holds
    assert not small(checks=(good, bad)).holds


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "this is not JSON"),
        ("[" * 100_000, "this is not JSON"),
        ('{"schema_version": NaN}', "NaN is not a number JSON knows"),
        ("[]", "there is no 'schema_version'"),
        ("{}", "there is no 'schema_version'"),
        ('{"schema_version": "1"}', 'schema_version is "1", expected a whole number'),
        (f'{{"schema_version": {SCHEMA_VERSION + 1}}}', "newer than .* upgrade takeup"),
        ('{"schema_version": 1}', "the key 'title' is missing"),
        (altered(colour="red"), "report: unknown key 'colour'"),
        (altered(seed=True), "report.seed is true, expected a whole number"),
        (altered(seed=1.5), "report.seed is 1.5, expected a whole number"),
        (altered(title=None), "report.title is null, expected text"),
        (altered(scenario=[]), r"report.scenario is \[\], expected a mapping"),
        (altered(notes="x"), 'report.notes is "x", expected a list'),
        (altered(notes=["x", 3]), r"report.notes\[1\] is 3, expected text"),
        (altered(checks=[3]), r"report.checks\[0\] is 3, expected a mapping with the keys of a check"),
        (altered().replace('"paper"', '"rumour"'), "source is \"rumour\", expected 'paper' or"),
        (altered().replace('"ours": 1.0', '"ours": [1]'), r"ours is \[1\], expected a number or text or null"),
        (altered().replace('"ours": 1.0', '"ours": 1e999'), "ours is Infinity, expected a number"),
        (altered(title=["x" * 100]), r"report.title is \[\"x+\.\.\., expected text"),
    ],
)
def test_a_malformed_report_is_refused_by_key(text: str, problem: str) -> None:
    with pytest.raises(BadInput, match=problem):
        Report.from_json(text)


def places(value: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside a JSON tree."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [place for key, item in inside for place in places(item, (*path, key))]


FULL = json.loads(
    small(
        tables=(Table("t", (Column("a", "s"),), ((1.5,), (None,))),),
        series=(Series("s", "x", "y", ({"x": 1, "y": 2.5},)),),
        checks=(Check.near("n", 1.0, 1.0, 0.1),),
        notes=("note",),
    ).to_json()
)


@pytest.mark.parametrize("place", places(FULL), ids=str)
@pytest.mark.parametrize("wrong", [None, True, -1, 0.5, "text", [], {}, [[]], {"x": {}}], ids=repr)
def test_a_wrong_value_anywhere_is_either_usable_or_refused(place: tuple[Any, ...], wrong: object) -> None:
    data = json.loads(json.dumps(FULL))
    holder = data
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = wrong

    with suppress(BadInput):  # any other exception would be a traceback for the user
        assert json.loads(Report.from_json(json.dumps(data)).to_json()) == data


@pytest.mark.parametrize("key", ["title", "domain", "scenario", "seed"])
def test_a_missing_key_is_named(key: str) -> None:
    data = json.loads(small().to_json())
    del data[key]

    with pytest.raises(BadInput, match=f"the key '{key}' is missing"):
        Report.from_json(json.dumps(data))


@pytest.mark.parametrize("digits", [-1, 16])
def test_a_number_of_decimals_nobody_can_read_is_refused(digits: int) -> None:
    with pytest.raises(BadInput, match=f"column 'a': digits is {digits}"):
        Column("a", digits=digits)


def test_keys_with_a_default_may_be_absent() -> None:
    data = json.loads(small().to_json())
    del data["machine"]

    assert Report.from_json(json.dumps(data)) == small()


def test_a_saved_report_loads_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.json"
    small().save(path)

    assert Report.load(path) == small()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot read report .*none\.json: No such file"):
        Report.load(tmp_path / "none.json")


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(b"\xff\xfe\x00")

    with pytest.raises(BadInput, match=r"report\.json: this is not a text file"):
        Report.load(path)


def test_a_malformed_file_is_named_with_its_key(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(altered(seed="x"))

    with pytest.raises(BadInput, match=r"report\.json: report\.seed is \"x\""):
        Report.load(path)


def test_a_full_disk_leaves_the_old_report_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    small().save(path)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(OutputFailed, match="No space left on device"):
        small(title="New").save(path)
    assert Report.load(path) == small()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "settings", [{"kind": "span"}, {"kind": "line", "x_end": "to"}, {"kind": "step", "mark": "due"}]
)
def test_only_spans_have_an_end_and_marks(settings: Any) -> None:
    with pytest.raises(BadInput, match="spans need 'x_end'"):
        Series("s", "x", "y", (), **settings)


@pytest.mark.parametrize("missing", ["from", "to", "due", "lane"])
def test_spans_need_all_their_keys_in_every_row(missing: str) -> None:
    row: dict[str, Cell] = {key: 1 for key in ("from", "to", "due", "lane") if key != missing}

    with pytest.raises(BadInput, match=f"row 0 has no key '{missing}'"):
        Series("s", "from", "lane", (row,), kind="span", x_end="to", mark="due")
