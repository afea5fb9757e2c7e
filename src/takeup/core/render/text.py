"""A report as text for a terminal, readable without colour."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from takeup.core.render.gantt import gantt_lines
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
