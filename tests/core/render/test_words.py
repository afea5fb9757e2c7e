"""The words shared by every format."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.core.render.text import (
    cell_text,
    check_cells,
    clean,
    is_numeric,
    name_with_unit,
    provenance,
    reasons,
    summary,
)
from takeup.core.report import Cell, Check, Column, Report, Table


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (None, 3, "—"),
        (True, 3, "yes"),
        (False, 3, "no"),
        (1234567, 3, "1,234,567"),
        (0.0, 2, "0.00"),
        (1234.5678, 2, "1,234.57"),
        (-0.5, 0, "-0.5"),
        (0.00001, 3, "1e-05"),
        (1.5e15, 3, "1.5e+15"),
        ("lru", 3, "lru"),
    ],
)
def test_a_cell_is_written_for_people(value: Cell, digits: int, text: str) -> None:
    assert cell_text(value, digits) == text


@settings(deadline=None)
@given(st.text(st.characters(codec=None)))
def test_clean_text_can_be_encoded_and_has_no_control_signs(text: str) -> None:
    cleaned = clean(text)

    assert cleaned.encode().decode() == cleaned
    assert cleaned.isprintable()
    assert len(cleaned) == len(text)


def test_a_label_carries_its_unit() -> None:
    assert name_with_unit("time", "s") == "time (s)"
    assert name_with_unit("policy", "") == "policy"


def test_a_column_of_numbers_and_gaps_is_numeric_and_others_are_not() -> None:
    columns = tuple(Column(name) for name in ("number", "flag", "text", "empty"))
    table = Table("t", columns, ((1, True, "a", None), (None, False, 2, None)))

    assert [is_numeric(table, index) for index in range(4)] == [True, False, False, False]


def test_columns_with_equal_headings_are_each_judged_by_their_own_cells() -> None:
    table = Table("t", (Column("a"), Column("a")), ((1, "x"),))

    assert [is_numeric(table, index) for index in range(2)] == [True, False]


@pytest.mark.parametrize(
    ("check", "cells"),
    [
        (Check.near("n", 1.6, 2.0, 0.2, unit="s"), ("n (s)", "1.6", "2 ± 0.2", "-20.0%", "FAILS", "the paper")),
        (Check.near("n", 2.0, 2.0, 0.0), ("n", "2", "2", "+0.0%", "holds", "the paper")),
        (Check.at_least("n", 1.2e6, 1e6), ("n", "1,200,000", "at least 1,000,000", "+20.0%", "holds", "our bar")),
        (Check.at_most("n", None, 4), ("n", "—", "at most 4", "—", "FAILS", "our bar")),
        (Check.near("n", 9, 0, 1, source="unverified"), ("n", "9", "0 ± 1", "—", "differs", "not verified")),
        (Check("n", "a", "a", "", True, "measured", None), ("n", "a", "a", "—", "holds", "measured")),
    ],
)
def test_a_check_is_told_in_words(check: Check, cells: tuple[str, ...]) -> None:
    assert check_cells(check) == cells


def test_the_summary_counts_what_holds_and_names_what_fails() -> None:
    good, bad = Check.near("good", 1, 1, 0), Check.near("bad", 2, 1, 0)
    remembered = Check.near("folklore", 2, 1, 0, source="unverified")

    def of(*checks: Check) -> str:
        return summary(Report("t", "d", {}, 1, checks=checks))

    assert of() == "no checks that count"
    assert of(remembered) == "no checks that count (not counted: 1 not verified)"
    assert of(good, good) == "2 of 2 checks hold"
    assert of(good, bad, remembered) == "1 of 2 checks hold (not counted: 1 not verified); FAILS: bad"


def test_arithmetic_on_the_papers_numbers_is_shown_and_not_counted() -> None:
    good, bad = Check.at_least("good", 2, 1), Check.at_least("bad", 0, 1)
    report = Report("r", "papers", {}, 1, checks=(good, replace(bad, exercises="arithmetic")))

    assert report.holds
    assert summary(report) == "1 of 1 checks hold (not counted: 1 arithmetic)"
    assert check_cells(report.checks[1])[4:] == ("differs", "our bar, arithmetic")


def test_reasons_come_from_checks_that_give_one(small_report: Report) -> None:
    assert reasons(small_report) == ["events: a slow machine"]


def test_provenance_leaves_out_what_is_not_known(small_report: Report) -> None:
    assert provenance(small_report) == "caching · seed 7 · takeup 0.1.0 · 2030-01-02T03:04:05Z · 2 cores"
    assert provenance(Report("t", "edge", {}, 3)) == "edge · seed 3"
