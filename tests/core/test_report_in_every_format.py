"""A report keeps its numbers in every format: what is read back from a page or a text is what the report holds."""

from __future__ import annotations

import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.core.render import to_html, to_text
from takeup.core.report import Cell, Check, Column, Report, Table

numbers = st.floats(-1e300, 1e300) | st.floats(-1e4, 1e4)  # one step further a rounded number may be infinite
signs = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=12)
cells: st.SearchStrategy[Cell] = st.none() | st.booleans() | st.integers() | numbers | signs
moderate = st.floats(1e-3, 1e7) | st.floats(-1e7, -1e-3)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    columns = tuple(Column(name, "s", draw(st.integers(0, 15))) for name in "abc")
    return Table("T", columns, tuple(draw(st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=5))))


def report_of(*, tables: tuple[Table, ...] = (), checks: tuple[Check, ...] = ()) -> Report:
    return Report("title", "domain", {}, 1, tables=tables, checks=checks)


class Grid(HTMLParser):
    """The text of every cell of a page's tables, in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.inside = False
        self.cells: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.inside = tag == "td"
        if self.inside:
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = False

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.cells[-1] += data


def assert_shown(text: str, value: Cell, digits: int) -> None:
    """The text says the value: numbers to half a unit of the last digit that is shown, all else in full."""
    if value is None or isinstance(value, bool):
        assert text == {None: "—", True: "yes", False: "no"}[value]
    elif isinstance(value, str):
        assert text.strip() == value.strip()
    elif isinstance(value, int):
        assert int(text.replace(",", "")) == value
    else:
        is_short = "e" in text or abs(value) >= 1e12  # then `digits` are significant ones
        half_digit = 0.51 * 10 ** (1 - max(digits, 2)) * abs(value) if is_short else 0.51 * 10**-digits
        rounding = math.ulp(value)  # a decimal text is read back as the nearest number there is
        assert abs(float(text.replace(",", "")) - value) <= half_digit + rounding


@settings(deadline=None)
@given(table=tables())
def test_a_table_is_read_back_from_a_page(table: Table) -> None:
    shown = Grid(to_html(report_of(tables=(table,)))).cells

    expected = [(value, column.digits) for row in table.rows for value, column in zip(row, table.columns, strict=True)]
    for text, (value, digits) in zip(shown, expected, strict=True):
        assert_shown(text, value, digits)


@settings(deadline=None)
@given(table=tables())
def test_all_formats_write_a_value_in_the_same_way(table: Table) -> None:
    report = report_of(tables=(table,))
    shown = [cell.strip() for cell in Grid(to_html(report)).cells]

    assert all(cell in to_text(report, width=2000) for cell in shown)


@settings(deadline=None)
@given(ours=moderate, expected=moderate, relation=st.sampled_from(["near", "at least", "at most"]))
def test_a_check_shows_its_numbers_its_distance_and_its_verdict(
    ours: float, expected: float, relation: Literal["near", "at least", "at most"]
) -> None:
    make = {"at least": Check.at_least, "at most": Check.at_most}
    near = Check.near("c", ours, expected, abs(expected) / 10)
    check = near if relation == "near" else make[relation]("c", ours, expected)
    _, shown, goal, distance, verdict, _ = Grid(to_html(report_of(checks=(check,)))).cells
    holds = {
        "near": abs(ours - expected) <= abs(expected) / 10,
        "at least": ours >= expected,
        "at most": ours <= expected,
    }

    assert float(shown.replace(",", "")) == pytest.approx(ours, rel=5.1e-6)
    assert float(goal.removeprefix(relation).split("±")[0].replace(",", "")) == pytest.approx(expected, rel=5.1e-6)
    assert float(distance.rstrip("%")) == pytest.approx(100 * (ours - expected) / abs(expected), abs=0.051)
    assert verdict == ("holds" if holds[relation] else "FAILS")


@settings(deadline=None)
@given(table=tables(), ours=moderate)
def test_a_saved_report_renders_to_the_same_bytes(
    tmp_path_factory: pytest.TempPathFactory, table: Table, ours: float
) -> None:
    report = report_of(tables=(table,), checks=(Check.near("c", ours, 1.0, 0.1),))
    path = Path(tmp_path_factory.mktemp("saved")) / "report.json"

    report.save(path)
    back = Report.load(path)

    assert back == report
    assert to_html(back) == to_html(report)


@settings(deadline=None)
@given(values=st.lists(numbers, min_size=2, max_size=2))
def test_a_narrow_terminal_breaks_numbers_over_lines_and_loses_no_digit(values: list[float]) -> None:
    table = Table("T", (Column("a", "", 12),), tuple((value,) for value in values))
    shown = "".join(to_text(report_of(tables=(table,)), width=9).split())

    assert "".join(Grid(to_html(report_of(tables=(table,)))).cells) in shown
