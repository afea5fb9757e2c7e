"""A report as text: for a terminal, readable without colour, and as GitHub markdown."""

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from takeup.core.render.formatting import (
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

# A report as GitHub markdown ------------------------------------------------------------------------------------------

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


# A report as text for a terminal, readable without colour -------------------------------------------------------------

_WIDTH_WITHOUT_TERMINAL = 120
_STYLES = {"holds": "green", "FAILS": "bold red"}


def to_text(report: Report, width: int | None = None, colour: bool = False) -> str:
    """The report as text, `width` columns wide; without `width`, as wide as the terminal."""
    columns = width or shutil.get_terminal_size((_WIDTH_WITHOUT_TERMINAL, 24)).columns
    console = Console(
        file=StringIO(),
        width=columns,
        force_terminal=colour,
        color_system="standard" if colour else None,
        legacy_windows=False,
    )
    with console.capture() as capture:
        _print(report, console)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def _print(report: Report, console: Console) -> None:
    console.print(Text(clean(report.title), style="bold"))
    console.print(Text(provenance(report)))
    for table in report.tables:
        _print_titled(console, table.title, _rich_table(table), [table.note] if table.note else [])
    if report.checks:
        _print_titled(console, f"Checks: {summary(report)}", _check_table(report), reasons(report))
    if report.series:
        _print_charts(console, report.series)
    if report.notes:
        _print_lines(console, "Notes", report.notes)


def _print_titled(console: Console, title: str, table: RichTable, notes: Iterable[str]) -> None:
    console.print(Text(f"\n{clean(title)}", style="bold"))
    console.print(table)
    for note in notes:
        console.print(Text(f"  {clean(note)}"))


def _print_lines(console: Console, title: str, lines: Iterable[str]) -> None:
    console.print(Text(f"\n{title}", style="bold"))
    for line in lines:
        console.print(Text(f"  {clean(line)}"))


def _print_charts(console: Console, charts: Iterable[Series]) -> None:
    """The titles of the charts; spans are drawn as well, because letters can show them."""
    _print_lines(console, "Charts", ())
    for series in charts:
        console.print(Text(f"  {clean(series.title)} ({len(series.rows):,} values)"))
        for line in gantt_lines(series, console.width - 4) if series.kind == "span" else ():
            console.print(Text(f"    {line}"))


def _rich_table(table: Table) -> RichTable:
    drawn = _empty_table()
    for index, column in enumerate(table.columns):
        _add_column(drawn, name_with_unit(column.name, column.unit), to_the_right=is_numeric(table, index))
    for row in table.rows:
        drawn.add_row(*(Text(cell_text(cell, column.digits)) for cell, column in zip(row, table.columns, strict=True)))
    return drawn


def _check_table(report: Report) -> RichTable:
    drawn = _empty_table()
    for heading in CHECK_HEADINGS:
        _add_column(drawn, heading, to_the_right=heading in {"ours", "off by"})
    for check in report.checks:
        drawn.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in check_cells(check)))
    return drawn


def _empty_table() -> RichTable:
    return RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)


def _add_column(drawn: RichTable, heading: str, *, to_the_right: bool) -> None:
    drawn.add_column(Text(heading), justify="right" if to_the_right else "left", overflow="fold")
