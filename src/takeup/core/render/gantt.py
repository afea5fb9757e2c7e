"""A text Gantt chart for terminals: a row for each lane, a letter for each group.

Every character is one time slice; a shorter span still gets one. A mark is a vertical bar, drawn over the spans.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import ascii_letters

from takeup.core.render.words import cell_text, clean, name_with_unit
from takeup.core.report import Cell, Series

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
