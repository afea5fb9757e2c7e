"""A report as one self-contained web page with interactive charts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape

import vl_convert

from takeup.core.render.charts import VEGA_LITE_VERSION, vega_lite
from takeup.core.render.page import element, json_block, page, table
from takeup.core.render.words import (
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
    """The report as a web page that needs no network; `links` are shown at its top."""
    return page(report.title, _body(report, links))


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
    if report.series:
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
    caption = element("figcaption", f"{series.title}: {name_with_unit(series.y, series.y_unit)}", "soft")
    return f"<figure>\n{chart}\n{caption}\n{_details('Numbers of this chart', _numbers(series))}\n</figure>"


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
    bundle = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE_VERSION)
    return bundle.replace("</script", "<\\/script")
