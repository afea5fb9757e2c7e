"""Self-contained web pages: the frame of all pages, and a report with interactive charts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from html import escape

from takeup.core.render.charts import VEGA_LITE_VERSION, converter, missing_charts, to_svg, vega_lite
from takeup.core.render.text import (
    CHECK_HEADINGS,
    cell_text,
    check_cells,
    clean,
    is_numeric,
    name_with_unit,
    provenance,
    reasons,
    summary,
)
from takeup.core.report import Report, Series, Table

# The frame of every web page: head, stylesheet, escaping. A page is one file without network requests -----------------

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
"""


def page(title: str, body: Iterable[str], style: str = "") -> str:
    """A whole HTML document around the elements of `body`; `style` is added to the stylesheet of all pages."""
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            element("title", title),
            f"<style>{_STYLE}{style}</style>",
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


# A report as one self-contained web page with interactive charts ------------------------------------------------------

PageLink = tuple[str, str]
"""What a link says, and where it leads."""

_MAX_ROWS_UNDER_CHART = 500

# Draws every chart: as wide as the page unless it has facets, in the page's colours, legend below on a narrow screen.
# The outer braces keep its names apart from those of the libraries before it.
_SCRIPT = """
{
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
const text = dark ? "#e6e9ec" : "#1c2024", line = dark ? "#3a4149" : "#d8dde2";
const narrow = document.body.clientWidth < 600;
const config = {
  background: "transparent", title: {color: text, subtitleColor: text}, header: {labelColor: text},
  axis: {labelColor: text, titleColor: text, gridColor: line, tickColor: line, domainColor: line},
  legend: {labelColor: text, titleColor: text, ...(narrow ? {orient: "bottom", columns: 3} : {})},
};
JSON.parse(document.getElementById("charts").textContent).forEach((spec, index) => {
  if (!spec.facet) spec.width = "container";
  const actions = {export: true, source: false, compiled: false, editor: false};
  vegaEmbed(`#chart-${index}`, spec, {mode: "vega-lite", config, actions});
});
}
"""


def to_html(report: Report, links: Sequence[PageLink] = ()) -> str:
    """The report as a web page that needs no network; `links` are shown at its top.

    Without the extra `charts` it has the numbers of the charts only.
    """
    return page(report.title, _body(report, links))


def notebook_html(report: Report) -> str:
    """The report as part of a page: checks, the first chart as an image, and all tables."""
    parts = [element("h3", report.title), *(_checks(report) if report.checks else ())]
    if report.series and not missing_charts():
        parts.append(f"<figure>{to_svg(report.series[0])}</figure>")
    for shown in report.tables:
        parts += _section(shown)
    return "\n".join([*parts, *(element("p", note) for note in report.notes)])


def _body(report: Report, links: Sequence[PageLink]) -> Iterator[str]:
    yield from _header(report, links)
    yield "<main>"
    if report.checks:
        yield from _checks(report)
    for index, series in enumerate(report.series):
        yield _figure(series, index)
    for shown in report.tables:
        yield from _section(shown)
    yield from (element("p", note) for note in report.notes)
    yield _details("Scenario: what to run again for the same numbers", _scenario(report))
    yield "</main>"
    if report.series and not missing_charts():
        yield from _scripts(report)


def _header(report: Report, links: Sequence[PageLink]) -> Iterator[str]:
    yield "<header>"
    if links:
        anchors = (f'<a href="{escape(address)}">{escape(clean(label))}</a>' for label, address in links)
        yield f"<nav>{''.join(anchors)}</nav>"
    yield element("h1", report.title)
    yield element("p", provenance(report), "soft")
    yield "</header>"


def _checks(report: Report) -> Iterator[str]:
    yield element("h2", "Checks")
    yield element("p", summary(report), "good" if report.holds else "bad")
    numeric = [heading in {"ours", "off by"} for heading in CHECK_HEADINGS]
    yield table(CHECK_HEADINGS, numeric, map(check_cells, report.checks))
    yield from (element("p", reason, "soft") for reason in reasons(report))


def _section(shown: Table) -> Iterator[str]:
    yield element("h2", shown.title)
    headings = [name_with_unit(column.name, column.unit) for column in shown.columns]
    digits = [column.digits for column in shown.columns]
    rows = ([cell_text(*pair) for pair in zip(row, digits, strict=True)] for row in shown.rows)
    yield table(headings, [is_numeric(shown, index) for index in range(len(headings))], rows)
    if shown.note:
        yield element("p", shown.note, "soft")


def _figure(series: Series, index: int) -> str:
    """The chart's container, and its numbers as a table for readers without scripts or sight."""
    chart = f'<div class="wide"><div class="chart" id="chart-{index}"></div></div>'
    numbers = _details("Numbers of this chart", _numbers(series))
    return f'<figure aria-label="{escape(clean(series.title))}">\n{chart}\n{numbers}\n</figure>'


def _numbers(series: Series) -> str:
    moments = (series.x, series.x_end, series.mark)
    units = {key: series.x_unit for key in moments if key is not None} | {series.y: series.y_unit}
    keys = [key for key in (series.facet, series.colour, *units) if key is not None]
    rows = series.rows[:_MAX_ROWS_UNDER_CHART]
    left_out = len(series.rows) - len(rows)
    more = element("p", f"{left_out:,} more rows are in the JSON of this report.", "soft") if left_out else ""
    headings = [name_with_unit(key, units.get(key, "")) for key in keys]
    return (
        table(headings, [key in units for key in keys], ([cell_text(row[key]) for key in keys] for row in rows)) + more
    )


def _details(title: str, inside: str) -> str:
    return f"<details>\n{element('summary', title)}\n{inside}\n</details>"


def _scenario(report: Report) -> str:
    values = json.loads(report.to_json())["scenario"]
    return f"<pre>{escape(json.dumps(values, indent=2))}</pre>"


def _scripts(report: Report) -> Iterator[str]:
    yield json_block("charts", [vega_lite(series) for series in report.series])
    yield f"<script>{_bundle()}</script>"
    yield f"<script>{_SCRIPT}</script>"


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script; making it takes about a second."""
    bundle: str = converter().javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE_VERSION)
    return bundle.replace("</script", "<\\/script")
