"""The page of cards: for each system its problem, a small chart, one number, and the line that puts it to use."""

from collections.abc import Iterable, Iterator
from html import escape

from takeup.core.render.html import element, page
from takeup.core.render.text import clean
from takeup.tour.stops import GUIDES, Shown

_STYLE = """
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); gap: 1rem }
.card { border: 1px solid var(--line); border-radius: .6rem; padding: 1rem 1.1rem; min-width: 0 }
.card h2 { font-size: 1.05rem; margin: 0 0 .5rem } .card p { margin: .5rem 0 }
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
TITLE = "takeup: nine systems, one number each"
INTRODUCTION = (
    "Computed on this machine just now, with the same seed everywhere. The green bar is ours; the others are the best "
    "alternatives. Each card opens: what the system does, where it loses, all tables and charts."
)


def cards_html(cards: Iterable[Shown]) -> str:
    """One self-contained page with all cards; it needs no script."""
    return page(TITLE, _body(cards), _STYLE)


def _body(cards: Iterable[Shown]) -> Iterator[str]:
    yield f"<header>{element('h1', TITLE)}{element('p', INTRODUCTION, 'soft')}</header>"
    yield '<main class="cards">'
    yield from map(_card, cards)
    yield "</main>"


def _card(shown: Shown) -> str:
    stop = shown.stop
    parts = (
        element("p", stop.system, "system"),
        element("h2", stop.problem),
        element("p", shown.text(stop.measure.ours), "number"),
        element("p", f"{stop.measure.what}; best alternative: {shown.best}, {shown.text(shown.best)}", "soft"),
        _chart(shown),
        f"<p>On yours: {element('code', stop.command)}</p>",
        _details(shown),
    )
    return f'<article class="card" id="{escape(stop.system)}">\n' + "\n".join(parts) + "\n</article>"


def _chart(shown: Shown) -> str:
    label = ", ".join(f"{name} {shown.text(name)}" for name in shown.values)
    rows = "".join(_bar(shown, name) for name in shown.values)
    return f'<div class="bars" role="img" aria-label="{escape(clean(label))}">{rows}</div>'


def _bar(shown: Shown, name: str) -> str:
    kind = "row ours" if name == shown.stop.measure.ours else "row"
    longest = max(map(abs, shown.values.values())) or 1.0
    length = f'<i style="width:{max(abs(shown.values[name]) / longest, 0.005):.1%}"></i>'
    return f'<div class="{kind}">{element("span", name)}{length}{element("b", shown.text(name))}</div>'


def _details(shown: Shown) -> str:
    report, guide = f"{escape(shown.stop.system)}/report.html", f"{GUIDES}/{escape(shown.stop.guide)}.md"
    links = f'<a href="{report}">Tables and charts</a> · <a href="{guide}">Guide</a>'
    inside = f"{element('summary', 'What it does, and where it loses')}{element('p', shown.stop.why)}<p>{links}</p>"
    return f"<details>{inside}</details>"
