"""A web page that lists several reports."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape

from takeup.core.render.page import element, page
from takeup.core.render.words import clean, summary
from takeup.core.report import Report


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One report in the list: what it shows in a sentence, the verdict of its checks, where it is."""

    title: str
    summary: str
    verdict: str
    holds: bool
    link: str

    @classmethod
    def of(cls, report: Report, link: str, sentence: str = "") -> IndexEntry:
        """The entry of `report`, whose page is at `link`."""
        return cls(report.title, sentence, summary(report) if report.checks else "", report.holds, link)


def index_html(entries: Iterable[IndexEntry], title: str = "Reports", introduction: str = "") -> str:
    """A self-contained page with a link to every report and the verdict of its checks."""
    return page(title, _index_body(list(entries), title, introduction))


def _index_body(entries: list[IndexEntry], title: str, introduction: str) -> Iterator[str]:
    yield element("h1", title)
    if introduction:
        yield element("p", introduction, "soft")
    yield "<main>"
    yield '<ul class="reports">'
    yield from map(_index_item, entries)
    yield "</ul>"
    yield "</main>"


def _index_item(entry: IndexEntry) -> str:
    link = f'<a href="{escape(entry.link)}">{escape(clean(entry.title))}</a>'
    sentence = element("p", entry.summary) if entry.summary else ""
    verdict = element("p", entry.verdict, "good" if entry.holds else "bad") if entry.verdict else ""
    return f"<li>{link}{sentence}{verdict}</li>"
