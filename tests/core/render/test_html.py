"""Reports as web pages: well formed, self-contained, and safe with any text."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from takeup.core.render.charts import vega_lite
from takeup.core.render.html import to_html
from takeup.core.report import Report, Series

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Outline(HTMLParser):
    """Reads a page, checks that tags are balanced, and keeps what the tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href", "action", "data"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


@pytest.fixture(scope="module")
def small_page(small_report: Report) -> str:
    return to_html(small_report, links=[("All reports", "index.html")])


def test_a_page_is_balanced_and_says_everything_once(small_page: str) -> None:
    outline = Outline(small_page)

    assert outline.texts["h1"] == ["LRC against LRU"]
    assert outline.texts["h2"] == ["Checks", "Run time"]
    assert outline.tags.count("main") == outline.tags.count("header") == outline.tags.count("figure") == 1
    assert outline.tags.count("script") == 3
    assert "Times are simulated." in outline.texts["p"]
    assert {"lru", "9.0", "holds", "FAILS", "differs", "not verified"} <= set(outline.texts["td"])


def test_a_page_asks_the_network_for_nothing(small_page: str) -> None:
    outline = Outline(small_page)

    assert outline.addresses == ["index.html"]
    assert not {"link", "img", "iframe", "object"} & set(outline.tags)
    style = "".join(outline.texts["style"])
    assert "url(" not in style
    assert "@import" not in style


def test_the_charts_of_the_page_are_the_specifications_of_the_series(small_page: str, small_report: Report) -> None:
    specs = json.loads(Outline(small_page).texts["script"][0])

    assert specs == [vega_lite(series) for series in small_report.series]
    assert 'id="chart-0"' in small_page


def test_the_scenario_can_be_read_from_the_page(small_page: str, small_report: Report) -> None:
    scenario = json.loads("".join(Outline(small_page).texts["pre"]))

    assert scenario == small_report.scenario


def test_a_page_without_charts_carries_no_script(small_report: Report) -> None:
    page = to_html(replace(small_report, series=()))

    assert "script" not in Outline(page).tags
    assert len(page) < 20_000


def test_hostile_text_stays_text(hostile_report: Report) -> None:
    page = to_html(hostile_report, links=[(hostile_report.title, '"><script>')])
    outline = Outline(page)

    assert outline.tags.count("script") == 3
    assert "b" not in outline.tags
    assert outline.addresses == ['"><script>']
    page.encode()


def test_a_long_series_shows_the_first_rows_and_says_how_many_are_left(small_report: Report) -> None:
    long = Series("Long", "x", "y", tuple({"x": x, "y": x} for x in range(1500)))

    outline = Outline(to_html(replace(small_report, tables=(), checks=(), series=(long,))))

    assert "1,000 more rows are in the JSON of this report." in outline.texts["p"]
    assert outline.texts["td"].count("499") == 2
    assert "500" not in outline.texts["td"]


def test_the_same_report_is_the_same_page(small_page: str, small_report: Report) -> None:
    assert to_html(small_report, links=[("All reports", "index.html")]) == small_page
