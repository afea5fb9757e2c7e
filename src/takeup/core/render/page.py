"""The frame of every web page: head, stylesheet, escaping. A page is one file without network requests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape

from takeup.core.render.words import clean

# The policy makes "offline" a promise the browser keeps: inline parts only, no request of any kind. Vega compiles its
# expressions at run time, hence 'unsafe-eval'.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline' 'unsafe-eval'; img-src data: blob:"

_STYLE = """
:root { color-scheme: light dark; --text: #1c2024; --soft: #5c6670; --line: #d8dde2; --back: #fff; --stripe: #f5f7f9;
  --good: #00704d; --bad: #b3261e; --link: #0060a8 }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ec; --soft: #9aa4ae; --line: #3a4149; --back: #16191c;
  --stripe: #1e2226; --good: #4cc79a; --bad: #ff8a80; --link: #7ab8f5 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 64rem; padding: 1.5rem 1rem 4rem; color: var(--text); background: var(--back);
  font: 1rem/1.5 system-ui, sans-serif }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem } h2 { font-size: 1.2rem; margin: 2.2rem 0 .5rem }
a { color: var(--link) } .soft { color: var(--soft) } .good { color: var(--good) }
.bad { color: var(--bad); font-weight: 600 } nav a { margin-right: 1rem }
.wide { overflow-x: auto } figure { margin: 1.5rem 0 } .chart { width: 100%; min-height: 1px }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .8rem .3rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line) }
th { font-weight: 600; border-bottom-width: 2px } tbody tr:nth-child(even) { background: var(--stripe) }
td.number, th.number { text-align: right; white-space: nowrap }
summary { cursor: pointer; color: var(--soft) } pre { overflow-x: auto; padding: .8rem; background: var(--stripe) }
ul.reports { list-style: none; padding: 0 } ul.reports li { padding: .8rem 0; border-bottom: 1px solid var(--line) }
ul.reports p { margin: .2rem 0 0 }
"""


def page(title: str, body: Iterable[str]) -> str:
    """A whole HTML document around the elements of `body`."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            element("title", title),
            f"<style>{_STYLE}</style>",
            "</head>",
            "<body>",
            *body,
            "</body>",
            "</html>",
            "",
        ]
    )


def element(tag: str, text: str, kind: str = "") -> str:
    """One element around text that is escaped, of CSS class `kind`."""
    attribute = f' class="{escape(kind)}"' if kind else ""
    return f"<{tag}{attribute}>{escape(clean(text))}</{tag}>"


def table(headings: Sequence[str], numeric: Sequence[bool], rows: Iterable[Iterable[str]]) -> str:
    """A table of escaped text that scrolls sideways where the screen is narrow."""
    kinds = ["number" if right else "" for right in numeric]
    head = "".join(_heading(text, kind) for text, kind in zip(headings, kinds, strict=True))
    body = "\n".join(_row(row, kinds) for row in rows)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def json_block(identifier: str, value: object) -> str:
    """Data for a script; no text inside can end the element early, because every < is written as an escape."""
    text = json.dumps(value).replace("<", "\\u003c")
    return f'<script type="application/json" id="{escape(identifier)}">{text}</script>'


def _heading(text: str, kind: str) -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f'<th scope="col"{attribute}>{escape(clean(text))}</th>'


def _row(cells: Iterable[str], kinds: Sequence[str]) -> str:
    shades = {"holds": "good", "FAILS": "bad"}
    inside = (element("td", cell, kind or shades.get(cell, "")) for cell, kind in zip(cells, kinds, strict=True))
    return f"<tr>{''.join(inside)}</tr>"
