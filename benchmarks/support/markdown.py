"""A report as GitHub markdown, for the dated files in benchmarks/results."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from takeup.core.render.text import (
    CHECK_HEADINGS,
    cell_text,
    check_cells,
    clean,
    gantt_lines,
    is_numeric,
    name_with_unit,
    provenance,
    reasons,
    summary,
)
from takeup.core.report import Report, Series, Table

_WIDTH_OF_SPANS = 100

# Signs that start markup anywhere in a line. An underscore inside a word is harmless and stays readable.
_MARKUP = re.compile(r"[\\`*\[\]<>|~$&#]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def to_markdown(report: Report, images: Sequence[str] = ()) -> str:
    """The report as markdown; `images` are the chart files of its series, in order, relative to the text."""
    return "\n\n".join(_blocks(report, images)) + "\n"


def _blocks(report: Report, images: Sequence[str]) -> Iterator[str]:
    yield f"# {_escaped(report.title)}"
    yield _escaped(provenance(report))
    if report.checks:
        yield f"**{_escaped(summary(report))}**"
        yield _check_grid(report)
        yield from map(_escaped, reasons(report))
    for table in report.tables:
        yield f"## {_escaped(table.title)}"
        yield _table_grid(table)
        yield from _paragraphs(table.note)
    for index, series in enumerate(report.series):
        yield f"## {_escaped(series.title)}"
        yield _picture(series, images[index]) if index < len(images) else _in_words(series)
        yield from _paragraphs(series.note)
    for note in report.notes:
        yield f"> {_escaped(note)}"


def _paragraphs(note: str) -> Iterator[str]:
    if note:
        yield _escaped(note)


def _picture(series: Series, image: str) -> str:
    return f"![{_escaped(series.title)}]({image})"


def _in_words(series: Series) -> str:
    """The text in place of a missing image: a text Gantt chart for spans, a description of other charts."""
    if series.kind == "span":
        lines = [line.replace("`", "'") for line in gantt_lines(series, _WIDTH_OF_SPANS)]  # none can end the block
        return "\n".join(["```text", *lines, "```"])
    y, x = name_with_unit(series.y, series.y_unit), name_with_unit(series.x, series.x_unit)
    return _escaped(f"Chart of {y} over {x}, {len(series.rows)} values.")


def _table_grid(table: Table) -> str:
    headings = [name_with_unit(column.name, column.unit) for column in table.columns]
    rules = ["---:" if is_numeric(table, index) else "---" for index in range(len(headings))]
    digits = [column.digits for column in table.columns]
    return _grid(headings, rules, ([cell_text(*pair) for pair in zip(row, digits, strict=True)] for row in table.rows))


def _check_grid(report: Report) -> str:
    rules = ["---", "---:", "---", "---:", "---", "---"]
    return _grid(CHECK_HEADINGS, rules, map(check_cells, report.checks))


def _grid(headings: Iterable[str], rules: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = [_line(map(_escaped, headings)), _line(rules)]
    return "\n".join(lines + [_line(map(_escaped, row)) for row in rows])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return _MARKUP.sub(lambda match: f"\\{match.group()}", clean(text))
