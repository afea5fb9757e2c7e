"""A report as text for a terminal; values, units and verdicts in words, the same in every format."""

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from io import StringIO
from string import ascii_letters

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from takeup.core.report import Cell, Check, Report, Series, Table

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


# How values, units and verdicts are written, the same in every format -------------------------------------------------

CHECK_HEADINGS = ("check", "ours", "expected", "off by", "verdict", "source")
_SOURCES = {"paper": "the paper", "unverified": "not verified", "bar": "our bar", "measured": "measured"}


def clean(text: str) -> str:
    """Text without characters that move a cursor or cannot be encoded; every kind of white space becomes a space."""
    return "".join(" " if sign.isspace() else sign if sign.isprintable() else "\ufffd" for sign in text)


def name_with_unit(name: str, unit: str) -> str:
    """A name with its unit: `run time (s)`."""
    return clean(f"{name} ({unit})" if unit else name)


def cell_text(value: Cell, digits: int = 3) -> str:
    """One value of a table; numbers too small or too large for `digits` decimals get an exponent."""
    match value:
        case None:
            return "—"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            fits = value == 0 or 0.5 * 10**-digits < abs(value) < 1e12
            return f"{value:,.{digits}f}" if fits else f"{value:.{max(digits, 2)}g}"
    return clean(str(value))


def is_numeric(table: Table, index: int) -> bool:
    """Whether the column at `index` holds numbers only, and so reads best when set to the right."""
    present = [row[index] for row in table.rows if row[index] is not None]
    return bool(present) and all(isinstance(cell, int | float) and not isinstance(cell, bool) for cell in present)


def verdict(check: Check) -> str:
    """Whether a check holds, in words that stand out without colour."""
    if check.holds:
        return "holds"
    return "FAILS" if check.counts else "differs"


def check_cells(check: Check) -> tuple[str, ...]:
    """The cells of one check, under `CHECK_HEADINGS`."""
    return (
        name_with_unit(check.name, check.unit),
        _number(check.ours),
        _expected(check),
        _difference(check),
        verdict(check),
        _SOURCES[check.source] + ("" if check.exercises == "product" else f", {check.exercises}"),
    )


def reasons(report: Report) -> list[str]:
    """Why checks came out as they did, where a check says so."""
    return [clean(f"{check.name}: {check.why}") for check in report.checks if check.why]


def summary(report: Report) -> str:
    """One line on the checks of a report: how many hold, which fail, how many do not count."""
    counted = [check for check in report.checks if check.counts]
    failing = [clean(check.name) for check in counted if not check.holds]
    others = Counter(
        "not verified" if check.source == "unverified" else check.exercises
        for check in report.checks
        if not check.counts
    )
    ignored = f" (not counted: {', '.join(f'{number} {kind}' for kind, number in others.items())})" if others else ""
    if not counted:
        return f"no checks that count{ignored}"
    held = f"{len(counted) - len(failing)} of {len(counted)} checks hold{ignored}"
    return f"{held}; FAILS: {', '.join(failing)}" if failing else held


def provenance(report: Report) -> str:
    """One line on what made a report: domain, seed, version, time, machine."""
    version = report.version and f"takeup {report.version}"
    parts = (report.domain, f"seed {report.seed}", version, report.created, report.machine)
    return clean(" · ".join(part for part in parts if part))


def _number(value: float | str | None) -> str:
    """A number with six significant digits, enough to see why a check near its limit holds or fails."""
    if not isinstance(value, float):
        return cell_text(value)
    return f"{value:,.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:,.6g}"


def _expected(check: Check) -> str:
    number = _number(check.expected)
    if check.relation != "near":
        return f"{check.relation} {number}"
    return f"{number} ± {_number(check.tolerance)}" if check.tolerance else number


def _difference(check: Check) -> str:
    ours, expected = check.ours, check.expected
    if isinstance(ours, str) or isinstance(expected, str) or ours is None or not expected:
        return "—"
    return f"{(ours - expected) / abs(expected):+.1%}"


# A text Gantt chart for terminals: a row for each lane, a letter for each group ---------------------------------------
#
# Every character is one time slice; a shorter span still gets one. A mark is a vertical bar, drawn over the spans.

Limits = tuple[float, float]

IDLE, MARK, OTHER_GROUP = "·", "|", "#"
LEAST_SLICES = 20


def limits(series: Series) -> Limits:
    """The first and the last moment of a chart of spans."""
    keys = [key for key in (series.x, series.x_end, series.mark) if key is not None]
    moments = [moment for row in series.rows for key in keys if (moment := moment_of(row[key])) is not None]
    return min(moments, default=0.0), max(moments, default=0.0)


def gantt_lines(series: Series, width: int) -> list[str]:
    """The lanes, the times at both ends, and what the letters stand for; no lane is wider than `width`."""
    signs, within = _signs(series), limits(series)
    names = list(dict.fromkeys(_lane(series, row) for row in series.rows))
    margin = max(map(len, names), default=0) + 1
    num_slices = max(LEAST_SLICES, width - margin)
    lanes = {name: [IDLE] * num_slices for name in names}
    for row in series.rows:
        _draw(lanes[_lane(series, row)], series, row, within, signs.get(_group(series, row), OTHER_GROUP))
    for row in series.rows:
        _draw_mark(lanes[_lane(series, row)], series, row, within)
    drawn = [f"{name:<{margin}}{''.join(lane)}" for name, lane in lanes.items()]
    scale = " " * margin + _scale(name_with_unit(series.x, series.x_unit), within, num_slices)
    return [line[:width] for line in (*drawn, scale)] + _legend(series, signs)


def moment_of(cell: Cell) -> float | None:
    """A cell as a point in time; None if it is not a number."""
    return float(cell) if isinstance(cell, int | float) and not isinstance(cell, bool) else None


def _lane(series: Series, row: Mapping[str, Cell]) -> str:
    parts = [row[series.y]] if series.facet is None else [row[series.facet], row[series.y]]
    return " ".join(cell_text(part) for part in parts)


def _draw(lane: list[str], series: Series, row: Mapping[str, Cell], within: Limits, sign: str) -> None:
    begin, end = (_place(row[key], within, len(lane)) for key in (series.x, str(series.x_end)))
    if begin is not None and end is not None:
        length = max(1, end - begin)
        lane[begin : begin + length] = [sign] * length


def _draw_mark(lane: list[str], series: Series, row: Mapping[str, Cell], within: Limits) -> None:
    mark = None if series.mark is None else _place(row[series.mark], within, len(lane))
    if mark is not None:
        lane[mark] = MARK


def _place(cell: Cell, within: Limits, num_slices: int) -> int | None:
    """The slice of a moment; halves keep the difference of any two numbers finite."""
    moment, (first, last) = moment_of(cell), within
    if moment is None:
        return None
    length = last / 2 - first / 2
    return int((moment / 2 - first / 2) / length * (num_slices - 1)) if length > 0 else 0


def _group(series: Series, row: Mapping[str, Cell]) -> str:
    return "" if series.colour is None else cell_text(row[series.colour])


def _signs(series: Series) -> dict[str, str]:
    """A sign for each group: its name if all names are single signs, else letters as far as they go."""
    groups = [] if series.colour is None else list(dict.fromkeys(_group(series, row) for row in series.rows))
    if all(len(group) == 1 and group.isalnum() for group in groups):
        return {group: group for group in groups}
    return dict(zip(groups, ascii_letters, strict=False))


def _scale(what: str, within: Limits, num_slices: int) -> str:
    first, last = (cell_text(moment) for moment in within)
    return first + what.center(num_slices - len(first) - len(last)) + last


def _legend(series: Series, signs: Mapping[str, str]) -> list[str]:
    groups = [f"{sign} {group}" for group, sign in signs.items() if sign != group]
    key = [f"{clean(series.colour or '')}: {', '.join(groups)}"] if groups else []
    return key + ([f"{MARK} {clean(series.mark)}"] if series.mark is not None else [])
