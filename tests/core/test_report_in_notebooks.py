"""A report in a notebook: what it shows, and its tables as those of pandas and pyarrow."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from takeup.core import extras
from takeup.core.report import Column, Report, Series, Table
from takeup.errors import BadInput, MissingEngine

COLUMNS = (Column("policy"), Column("time", "s"), Column("time", "s"), Column("hits"))
ROWS = (("lru", 2.5, 2, None), ("lrc", 1.25, 1, 0.5))
SERIES = Series("Time", "policy", "time", ({"policy": "lru", "time": 2.5},), kind="bar", y_unit="s")
REPORT = Report("Two <policies>", "caching", {}, 1, (Table("Policies", COLUMNS, ROWS, "a note"),), (SERIES,))


def test_a_notebook_shows_the_chart_and_the_tables() -> None:
    shown = REPORT._repr_html_()

    assert "Two &lt;policies&gt;" in shown
    assert shown.count("<svg") == 1
    assert "<td>lrc</td>" in shown
    assert "<script" not in shown


def test_without_charts_the_tables_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)

    assert "<svg" not in REPORT._repr_html_()
    assert "<td>lrc</td>" in REPORT._repr_html_()


def test_tables_have_their_units_in_the_names_and_every_column_once() -> None:
    names = ["policy", "time (s)", "time (s) 2", "hits"]

    assert REPORT.to_arrow().column_names == names
    assert REPORT.to_arrow().column("time (s)").to_pylist() == [2.5, 1.25]
    frame = REPORT.to_pandas()
    assert list(frame.columns) == names
    assert frame["time (s) 2"].tolist() == [2, 1]
    assert frame["hits"].isna().tolist() == [True, False]


def test_a_table_that_is_not_there_is_said() -> None:
    with pytest.raises(BadInput, match="has no table 1; it has 1, counted from 0"):
        REPORT.to_arrow(1)
    with pytest.raises(BadInput, match="no table 0"):
        replace(REPORT, tables=()).to_pandas()


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "pandas", None)

    with pytest.raises(MissingEngine, match=r"pip install 'takeup\[traces\]'"):
        REPORT.to_arrow()
    with pytest.raises(MissingEngine, match="pip install pandas"):
        REPORT.to_pandas()
