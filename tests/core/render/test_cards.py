"""The page of cards: one card per system, each with its chart, and nothing a hostile text can break."""

from __future__ import annotations

import re
from dataclasses import replace

from takeup.core.render.cards import Bar, Card, cards_html

CARD = Card(
    "lrc",
    "Blocks are dropped.",
    "62 s",
    "PageRank; best alternative: lru, 124 s",
    (Bar("lru", 124.0, "124 s"), Bar("lrc", 62.0, "62 s", is_ours=True)),
    "It counts readers.",
    "takeup caching run",
    "https://example.org/spark.md",
    "lrc/report.html",
)


def test_a_card_has_problem_number_chart_command_and_links() -> None:
    page = cards_html([CARD], "Tour", "Two systems.")

    for text in (CARD.problem, CARD.number, CARD.meaning, CARD.why, f"<code>{CARD.command}</code>"):
        assert text in page
    assert 'href="lrc/report.html"' in page
    assert 'href="https://example.org/spark.md"' in page
    assert page.count('id="lrc"') == 1


def test_bars_are_as_long_as_their_values_and_ours_is_marked() -> None:
    page = cards_html([CARD], "Tour", "")

    assert re.findall(r'<div class="(row[^"]*)"><span>\w+</span><i style="width:([\d.]+%)"></i>', page) == [
        ("row", "100.0%"),
        ("row ours", "50.0%"),
    ]
    assert 'aria-label="lru 124 s, lrc 62 s"' in page


def test_a_chart_of_zeros_and_one_without_bars_can_be_drawn() -> None:
    zeros = replace(CARD, bars=(Bar("fifo", 0.0, "0 %"),))

    assert 'style="width:0.5%"' in cards_html([zeros, replace(CARD, bars=())], "Tour", "")


def test_a_picture_is_part_of_the_page() -> None:
    assert '<img alt="Blocks are dropped." src="data:image/png;base64,' in cards_html(
        [replace(CARD, picture=b"\x89PNG")], "Tour", ""
    )
    assert "<img" not in cards_html([CARD], "Tour", "")


def test_markup_in_a_text_stays_text() -> None:
    hostile = '"><script>alert(1)</script>'
    page = cards_html(
        [replace(CARD, system=hostile, problem=hostile, command=hostile, report=hostile)], hostile, hostile
    )

    assert "<script" not in page
