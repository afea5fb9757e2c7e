"""Spans in letters: lanes, marks and what the letters stand for."""

from __future__ import annotations

from takeup.core.render.html import to_html
from takeup.core.render.text import gantt_lines, limits, to_text
from takeup.core.report import Cell, Report, Series


def turns(*rows: tuple[str, str, Cell, Cell, Cell]) -> Series:
    keys = ("core", "task", "time", "until", "due")
    named = tuple(dict(zip(keys, row, strict=True)) for row in rows)
    return Series("Turns", "time", "core", named, "task", x_unit="s", kind="span", x_end="until", mark="due")


TWO_CORES = turns(("one", "a", 0, 10, 20), ("two", "b", 5, 15, None), ("one", "c", 10, 20, 15))


def test_every_lane_shows_who_is_in_it_when() -> None:
    assert gantt_lines(TWO_CORES, 25) == [
        "one aaaaaaaaaaccccc|cccc|",
        "two ·····bbbbbbbbbb······",
        "    0.000 time (s) 20.000",
        "| due",
    ]


def test_names_of_more_than_one_sign_are_told_by_letters() -> None:
    lines = gantt_lines(turns(("one", "device 1", 0, 1, None), ("one", "device 2", 1, 2, None)), 25)

    assert lines[0] == "one aaaaaaaaaabbbbbbbbbb·"
    assert lines[2] == "task: a device 1, b device 2"


def test_a_span_of_no_length_still_shows() -> None:
    lines = gantt_lines(turns(("one", "a", 0, 0, None), ("one", "b", 10, 10, None)), 25)

    assert lines[0] == "one a···················b"


def test_more_groups_than_letters_share_one_sign() -> None:
    lines = gantt_lines(turns(*((f"lane {task}", f"task {task}", 0, 1, None) for task in range(60))), 40)

    assert lines[51].startswith("lane 51 ZZZ")
    assert lines[52].startswith("lane 52 ###")


def test_the_limits_hold_all_moments_and_ignore_what_is_none() -> None:
    assert limits(TWO_CORES) == (0.0, 20.0)
    assert limits(turns(("one", "a", None, "soon", True))) == (0.0, 0.0)


def test_facets_are_named_before_their_lanes() -> None:
    row: dict[str, Cell] = {"core": "one", "time": 0, "until": 1, "site": "north"}
    series = Series("t", "time", "core", (row,), facet="site", kind="span", x_end="until")

    assert gantt_lines(series, 40)[0].startswith("north one ###")


def test_text_draws_spans() -> None:
    report = Report("t", "d", {}, 1, series=(TWO_CORES,))

    assert "    two ·····bbbbb" in to_text(report, width=29)


def test_the_page_lists_begin_end_and_mark() -> None:
    page = to_html(Report("t", "d", {}, 1, series=(TWO_CORES,)))

    for heading in ("time (s)", "until (s)", "due (s)", "core", "task"):
        assert f">{heading}</th>" in page
