"""A web page of cards: for each system its problem, a small chart, one number, and the line that puts it to use."""

from base64 import b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape

from takeup.core.render.html import element, page
from takeup.core.render.text import clean

_STYLE = """
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); gap: 1rem }
.card { border: 1px solid var(--line); border-radius: .6rem; padding: 1rem 1.1rem; min-width: 0 }
.card h2 { font-size: 1.05rem; margin: 0 0 .5rem } .card p { margin: .5rem 0 } .card img { max-width: 100% }
.number { font-size: 1.6rem; font-weight: 650; line-height: 1.2 }
.system { color: var(--soft); font-size: .8rem; letter-spacing: .05em; text-transform: uppercase; margin: 0 }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: .3rem .6rem; align-items: center;
  font-size: .85rem; margin: .7rem 0 }
.bars i { display: block; height: .8rem; border-radius: .2rem; background: var(--line) }
.bars .ours i { background: var(--good) }
.bars .row { display: contents } .bars b { font-weight: 500; text-align: right; font-variant-numeric: tabular-nums }
.bars .ours b, .bars .ours span { font-weight: 650 }
code { background: var(--stripe); border-radius: .3rem; padding: .15rem .3rem; font-size: .82rem;
  overflow-wrap: anywhere }
"""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of the small chart: its label, its length, and its number as text."""

    label: str
    value: float
    text: str
    is_ours: bool = False


@dataclass(frozen=True, slots=True)
class Card:
    """What is shown of one system; `report` and `guide` are links, `picture` is a PNG image or empty."""

    system: str
    problem: str
    number: str
    meaning: str
    bars: tuple[Bar, ...]
    why: str
    command: str
    guide: str
    report: str
    picture: bytes = b""


def cards_html(cards: Iterable[Card], title: str, introduction: str) -> str:
    """One self-contained page with all cards; it needs no script."""
    return page(title, _body(cards, title, introduction), _STYLE)


def _body(cards: Iterable[Card], title: str, introduction: str) -> Iterator[str]:
    yield f"<header>{element('h1', title)}{element('p', introduction, 'soft')}</header>"
    yield '<main class="cards">'
    yield from map(_card, cards)
    yield "</main>"


def _card(card: Card) -> str:
    image = b64encode(card.picture).decode()
    parts = [
        element("p", card.system, "system"),
        element("h2", card.problem),
        element("p", card.number, "number"),
        element("p", card.meaning, "soft"),
        _chart(card),
        f'<img alt="{escape(clean(card.problem))}" src="data:image/png;base64,{image}">' if image else "",
        f"<p>On yours: {element('code', card.command)}</p>",
        _details(card),
    ]
    return f'<article class="card" id="{escape(card.system)}">\n' + "\n".join(filter(None, parts)) + "\n</article>"


def _chart(card: Card) -> str:
    longest = max((abs(bar.value) for bar in card.bars), default=0.0) or 1.0
    label = ", ".join(f"{bar.label} {bar.text}" for bar in card.bars)
    rows = "".join(_bar(bar, abs(bar.value) / longest) for bar in card.bars)
    return f'<div class="bars" role="img" aria-label="{escape(clean(label))}">{rows}</div>'


def _bar(bar: Bar, share: float) -> str:
    kind = "row ours" if bar.is_ours else "row"
    length = f'<i style="width:{max(share, 0.005):.1%}"></i>'
    return f'<div class="{kind}">{element("span", bar.label)}{length}{element("b", bar.text)}</div>'


def _details(card: Card) -> str:
    links = f'<a href="{escape(card.report)}">Tables and charts</a> · <a href="{escape(card.guide)}">Guide</a>'
    inside = f"{element('summary', 'What it does, and where it loses')}{element('p', card.why)}<p>{links}</p>"
    return f"<details>{inside}</details>"
