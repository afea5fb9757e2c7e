"""The page of cards: one card per system, each with its chart, and nothing a hostile text can break."""

from __future__ import annotations

import re
from dataclasses import replace

from takeup.tour.cards import cards_html
from takeup.tour.stops import Measure, Shown, TourStop

MEASURE = Measure("PageRank", "lrc", "time", " s")
STOP = TourStop("lrc", "Blocks are dropped.", {}, MEASURE, "It counts readers.", "takeup caching run", "spark")
SHOWN = Shown(STOP, {"lru": 124.0, "lrc": 62.0})


def test_a_card_has_problem_number_chart_command_and_links() -> None:
    page = cards_html([SHOWN])

    for text in (STOP.problem, "PageRank; best alternative: lru, 124 s", STOP.why, f"<code>{STOP.command}</code>"):
        assert text in page
    assert '<p class="number">62 s</p>' in page
    assert 'href="lrc/report.html"' in page
    assert 'docs/guides/spark.md"' in page
    assert page.count('id="lrc"') == 1


def test_bars_are_as_long_as_their_values_and_ours_is_marked() -> None:
    page = cards_html([SHOWN])

    assert re.findall(r'<div class="(row[^"]*)"><span>\w+</span><i style="width:([\d.]+%)"></i>', page) == [
        ("row", "100.0%"),
        ("row ours", "50.0%"),
    ]
    assert 'aria-label="lru 124 s, lrc 62 s"' in page


def test_a_chart_of_zeros_can_be_drawn() -> None:
    assert cards_html([Shown(STOP, {"lru": 0.0, "lrc": 0.0})]).count('style="width:0.5%"') == 2


def test_markup_in_a_text_stays_text() -> None:
    hostile = '"><script>alert(1)</script>'
    stop = replace(STOP, system=hostile, problem=hostile, command=hostile, guide=hostile, why=hostile)

    assert "<script" not in cards_html([Shown(stop, {hostile: 1.0, "lrc": 2.0})])
