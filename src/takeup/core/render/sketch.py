"""A chart of lines as a small SVG image, written at once: starting a chart renderer takes half a second.

For commands that should answer while the person is still looking. The chart of the same series in a report's folder is
`charts`', with all kinds of marks; this one draws lines and steps over numbers, and follows light and dark pages.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from takeup.core.render.text import clean, name_with_unit
from takeup.core.report import Cell, Series
from takeup.errors import BadInput

Points = list[tuple[float, float]]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f")  # as in `charts`
WIDTH, HEIGHT = 720, 420
LEFT, RIGHT, TOP, BOTTOM = 76, 24, 72, 58  # around the lines
LEGEND_ROW, NUM_TICKS = 18, 6
SMALLEST_STEP = 1e-300  # below, numbers have no logarithm
STYLE = """
text { font: 13px "Liberation Sans", Arial, Helvetica, sans-serif; fill: #1c2024 }
.title { font-size: 16px; font-weight: bold } .tick { font-size: 12px }
.grid { stroke: #d8dde2 } .line { fill: none; stroke-width: 2; stroke-linejoin: round }
.back { fill: #fff }
@media (prefers-color-scheme: dark) { text { fill: #e6e9ec } .grid { stroke: #3a4149 } .back { fill: #16191c } }
"""


@dataclass(frozen=True, slots=True)
class _Axis:
    """Values from `low` to `high` on pixels from `begin` to `end`."""

    low: float
    high: float
    begin: float
    end: float

    def place(self, value: float) -> float:
        return self.begin + (value - self.low) / (self.high - self.low) * (self.end - self.begin)

    def ticks(self) -> list[float]:
        """Round numbers inside the axis, about NUM_TICKS of them."""
        step = _round_step((self.high - self.low) / NUM_TICKS)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def to_sketch(series: Series) -> str:
    """The lines or steps of a series as an SVG image."""
    if series.kind not in ("line", "step"):
        raise BadInput(f"a sketch has lines or steps, not {series.kind!r}; draw the series as a chart instead")
    lines = _lines(series)
    num_rows = len(lines) if len(lines) > 1 else 0
    top = TOP + LEGEND_ROW * num_rows
    every = [point for points in lines.values() for point in points] or [(0.0, 0.0)]
    across = _axis([x for x, _ in every], LEFT, WIDTH - RIGHT, from_zero=False)
    upward = _axis([y for _, y in every], HEIGHT + LEGEND_ROW * num_rows - BOTTOM, top, from_zero=True)
    parts = [*_frame(series, across, upward), *_drawn(lines, across, upward, is_step=series.kind == "step")]
    return _document(series, HEIGHT + LEGEND_ROW * num_rows, parts + (_legend(lines) if num_rows else []))


def _lines(series: Series) -> dict[str, Points]:
    """The points of every group by its name, without those that have no number."""
    lines: dict[str, Points] = {}
    for row in series.rows:
        x, y = _number(row[series.x]), _number(row[series.y])
        if x is not None and y is not None:
            lines.setdefault("" if series.colour is None else clean(str(row[series.colour])), []).append((x, y))
    return lines


def _number(value: Cell) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _axis(values: Sequence[float], begin: float, end: float, *, from_zero: bool) -> _Axis:
    """From the least to the largest value; with `from_zero` from zero on, unless all lie far above it."""
    low, high = min(values), max(values)
    if from_zero and 0 <= low < 0.5 * high:
        low = 0.0
    spread = high - low or abs(high) or 1.0
    top = high + 0.04 * spread if from_zero or high == low else high
    return _Axis(low, top if top - low > SMALLEST_STEP else low + 1.0, begin, end)


def _round_step(least: float) -> float:
    """The next of 1, 2, 5, 10, 20 .."""
    power = 10.0 ** math.floor(math.log10(max(least, SMALLEST_STEP)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _frame(series: Series, across: _Axis, upward: _Axis) -> Iterator[str]:
    for x in across.ticks():
        yield _text(across.place(x), upward.begin + 18, f"{x:.6g}", "tick", anchor="middle")
    for y in upward.ticks():
        yield _rule(across, upward.place(y))
        yield _text(across.begin - 8, upward.place(y) + 4, f"{y:.6g}", "tick", anchor="end")
    yield _text(LEFT, 28, clean(series.title), "title")
    yield _text(LEFT, 50, name_with_unit(series.y, series.y_unit))
    middle = (across.begin + across.end) / 2
    yield _text(middle, upward.begin + 42, name_with_unit(series.x, series.x_unit), anchor="middle")


def _drawn(lines: dict[str, Points], across: _Axis, upward: _Axis, *, is_step: bool) -> Iterator[str]:
    for number, points in enumerate(lines.values()):
        places = [(f"{across.place(x):.1f}", f"{upward.place(y):.1f}") for x, y in points]
        onward = "".join(f"H{x}V{y}" if is_step else f"L{x} {y}" for x, y in places[1:])
        yield f'<path class="line" stroke="{_colour(number)}" d="M{places[0][0]} {places[0][1]}{onward}"/>'


def _legend(lines: dict[str, Points]) -> list[str]:
    rows = []
    for number, name in enumerate(lines):
        y = TOP + LEGEND_ROW * number
        rows.append(f'<path class="line" stroke="{_colour(number)}" d="M{LEFT} {y - 4}h24"/>')
        rows.append(_text(LEFT + 32, y, name))
    return rows


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _rule(across: _Axis, y: float) -> str:
    return f'<path class="grid" d="M{across.begin:.1f} {y:.1f}H{across.end:.1f}"/>'


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _document(series: Series, height: int, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
    title = f"<title>{escape(clean(series.title))}</title>"
    return (
        "\n".join([head, title, f"<style>{STYLE}</style>", '<rect class="back" width="100%" height="100%"/>', *parts])
        + "\n</svg>\n"
    )
