"""Reports as GitHub markdown, as the dated files of benchmarks have them."""

from __future__ import annotations

import re

from benchmarks.support.markdown import to_markdown
from takeup.core.report import Column, Report, Table


def test_a_small_report_as_markdown(small_report: Report) -> None:
    assert to_markdown(small_report, ["run-time.svg"]) == (
        "# LRC against LRU\n\n"
        "caching · seed 7 · takeup 0.1.0 · 2030-01-02T03:04:05Z · 2 cores\n\n"
        "**1 of 2 checks hold (not counted: 1 not verified); FAILS: events**\n\n"
        "| check | ours | expected | off by | verdict | source |\n"
        "| --- | ---: | --- | ---: | --- | --- |\n"
        "| saving (share) | 0.11 | 0.1 ± 0.02 | +10.0% | holds | the paper |\n"
        "| events (1/s) | 900,000 | at least 1,000,000 | -10.0% | FAILS | our bar |\n"
        "| folklore | 3 | 5 ± 1 | -40.0% | differs | not verified |\n\n"
        "events: a slow machine\n\n"
        "## Run time\n\n"
        "| policy | time (s) | exact |\n"
        "| --- | ---: | --- |\n"
        "| lru | 9.0 | yes |\n"
        "| lrc | — | no |\n\n"
        "Simulated.\n\n"
        "## Run time by size\n\n"
        "![Run time by size](run-time.svg)\n\n"
        "> Times are simulated.\n"
    )


def test_without_a_picture_the_chart_is_described(small_report: Report) -> None:
    assert "Chart of run time (s) over size (%), 4 values." in to_markdown(small_report)


def test_markup_in_text_is_escaped_and_words_with_underscores_stay_readable() -> None:
    row = ("capacity_bytes", "_x_", "a|b", "<b>", "*c* [d](e)", "two\nlines")
    report = Report("t", "d", {}, 1, tables=(Table("T", tuple(map(Column, "abcdef")), (row,)),))

    assert r"| capacity_bytes | \_x\_ | a\|b | \<b\> | \*c\* \[d\](e) | two lines |" in to_markdown(report)


def test_hostile_text_opens_no_tag_and_breaks_no_table(hostile_report: Report) -> None:
    text = to_markdown(hostile_report)

    assert not re.search(r"(?<!\\)<", text)
    grid = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in grid} == {2, 7}
    text.encode()
