"""The list of several reports."""

from __future__ import annotations

from dataclasses import replace

from takeup.core.render.html import IndexEntry, index_html
from takeup.core.report import Report


def test_an_entry_takes_title_and_verdict_from_its_report(small_report: Report) -> None:
    entry = IndexEntry.of(small_report, "lrc/report.html", "What counting references saves.")

    assert entry.title == "LRC against LRU"
    assert not entry.holds
    assert entry.verdict.endswith("FAILS: events")


def test_every_report_is_listed_with_link_sentence_and_verdict(small_report: Report) -> None:
    good = replace(small_report, title="Good", checks=())
    entries = [IndexEntry.of(small_report, "a/report.html", "First."), IndexEntry.of(good, "b/report.html")]

    page = index_html(entries, title="Tour", introduction="Two reports.")

    assert page.count("<li>") == 2
    assert '<a href="a/report.html">LRC against LRU</a><p>First.</p><p class="bad">1 of 2' in page
    assert '<a href="b/report.html">Good</a></li>' in page
    assert "<h1>Tour</h1>" in page
    assert "Two reports." in page
    assert "<script" not in page


def test_hostile_text_stays_text(hostile_report: Report) -> None:
    page = index_html([IndexEntry.of(hostile_report, '"><script>', hostile_report.title)])

    assert "<script" not in page
    assert "<b " not in page
    page.encode()


def test_an_empty_list_is_a_page() -> None:
    assert '<ul class="reports">\n</ul>' in index_html([])
