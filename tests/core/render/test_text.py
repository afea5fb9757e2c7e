"""Reports on a terminal."""

from __future__ import annotations

import pytest

from takeup.core.render.text import to_text
from takeup.core.report import Column, Report, Table


def test_a_small_report_reads_well_without_colour(small_report: Report) -> None:
    assert to_text(small_report, width=90) == (
        "LRC against LRU\n"
        "caching · seed 7 · takeup 0.1.0 · 2030-01-02T03:04:05Z · 2 cores\n"
        "\n"
        "Run time\n"
        "policy  time (s)  exact\n"
        "───────────────────────\n"
        "lru          9.0  yes\n"
        "lrc            —  no\n"
        "  Simulated.\n"
        "\n"
        "Checks: 1 of 2 checks hold (not counted: 1 not verified); FAILS: events\n"
        "check              ours  expected            off by  verdict  source\n"
        "──────────────────────────────────────────────────────────────────────────\n"
        "saving (share)     0.11  0.1 ± 0.02          +10.0%  holds    the paper\n"
        "events (1/s)    900,000  at least 1,000,000  -10.0%  FAILS    our bar\n"
        "folklore              3  5 ± 1               -40.0%  differs  not verified\n"
        "  events: a slow machine\n"
        "\n"
        "Charts\n"
        "  Run time by size (4 values)\n"
        "\n"
        "Notes\n"
        "  Times are simulated.\n"
    )


def test_colour_adds_escape_codes_and_no_words(small_report: Report) -> None:
    plain, coloured = to_text(small_report, width=90), to_text(small_report, width=90, colour=True)

    assert "\x1b[" not in plain
    assert "\x1b[32mholds" in coloured
    assert "\x1b[1;31mFAILS" in coloured


def test_no_line_is_wider_than_asked_and_no_word_is_lost(small_report: Report) -> None:
    text = to_text(small_report, width=60)

    assert max(map(len, text.splitlines())) <= 60
    assert "…" not in text


def test_without_a_terminal_the_width_comes_from_the_environment(
    small_report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")

    assert to_text(small_report) == to_text(small_report, width=60)


def test_hostile_text_moves_no_cursor_and_is_not_markup(hostile_report: Report) -> None:
    text = to_text(hostile_report, width=300)

    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[bold]" in text
    text.encode()


def test_an_empty_table_still_shows_its_headings() -> None:
    report = Report("t", "d", {}, 1, tables=(Table("Nothing", (Column("a"), Column("b", "s")), ()),))

    assert "a  b (s)" in to_text(report, width=80)
