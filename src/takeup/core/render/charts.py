"""A series as a Vega-Lite specification, drawn to PNG and SVG.

How it works: the rows are copied under the fixed names x, y, colour and facet, so that no key of the caller can be
mistaken for an expression. Lines that coincide can still be told apart: all dashes have one period, and a later line,
drawn on top, covers less of it than an earlier one, so that equal lines show as stripes of every colour; later points
are smaller and sit inside earlier ones; and the subtitle names the groups whose values are equal. A curve of many
points is drawn as a plain line: marks and stripes would hide it. Spans are bars in lanes, with the name of their group
inside where it fits; their marks stand out above and below the bars.
"""

import textwrap
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from takeup.core.extras import lacking, need
from takeup.core.render.text import clean, limits, moment_of, name_with_unit
from takeup.core.report import Cell, Series

VEGA_LITE_VERSION = "5.20"
Spec = dict[str, Any]

# Okabe and Ito's colours, told apart by people with any kind of colour vision; without yellow and black, so that they
# show on a light and on a dark page.
_COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#7f7f7f"]
_SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right"]
_DASH_PERIOD, _SHORTEST_DASH_SHARE = 36.0, 0.45
_LARGEST_POINT, _SMALLEST_POINT = 160.0, 45.0
_MAX_FACETS_IN_A_ROW = 3
_MAX_TICKS_FROM_DATA = 10
_MAX_MARKED_POINTS = 24
_MAX_LEGEND_ROWS, _MAX_LEGEND_COLUMNS = 12, 4
_LANE_HEIGHT, _LEAST_HEIGHT = 34, 120
_LEAST_LOG_RATIO = 50  # of the largest to the smallest value, for a logarithmic axis
_LEAST_LETTER_SHARE = 0.015  # of the width of a chart of spans, for the name of its group to fit inside


def to_png(series: Series, scale: float = 2.0) -> bytes:
    """The chart as a PNG image, `scale` pixels per point."""
    image: bytes = converter().vegalite_to_png(vega_lite(series), vl_version=VEGA_LITE_VERSION, scale=scale)
    return image


def to_svg(series: Series) -> str:
    """The chart as an SVG image."""
    image: str = converter().vegalite_to_svg(vega_lite(series), vl_version=VEGA_LITE_VERSION)
    return image


def missing_charts() -> str:
    """The sentence that says why no chart can be drawn; empty if charts can be drawn."""
    return lacking("a chart", "charts")


def converter() -> ModuleType:
    """The package that draws Vega-Lite specifications."""
    need("a chart", "charts")
    import vl_convert

    return vl_convert


def vega_lite(series: Series) -> Spec:
    """The Vega-Lite specification of a series, with its data inside."""
    chart: Spec = {"layer": _layers(series), "width": _width(series), "height": _height(series)}
    if series.facet is not None:
        columns = min(_MAX_FACETS_IN_A_ROW, len(_groups(series, series.facet)))
        chart = {"facet": _facet(series, series.facet), "columns": columns, "spec": chart}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "title": _title(series),
        "data": {"values": _values(series)},
        "config": _config(),
        **chart,
    }


def _values(series: Series) -> list[dict[str, Cell]]:
    discrete = _is_discrete(series)
    ranks = {group: rank for rank, group in enumerate(_groups(series, series.colour))} if series.colour else {}
    first, last = limits(series)
    values: list[dict[str, Cell]] = []
    for row in series.rows:
        value = {"x": _label(row[series.x]) if discrete else row[series.x], "y": row[series.y]}
        if series.colour is not None:
            value |= {"colour": _label(row[series.colour]), "rank": ranks[_label(row[series.colour])]}
        if series.facet is not None:
            value["facet"] = f"{clean(series.facet)}: {_label(row[series.facet])}"
        values.append(value | _span_value(series, row, last - first))
    return values


def _span_value(series: Series, row: Mapping[str, Cell], length: float) -> dict[str, Cell]:
    """What a span has beyond the values of other charts, or in another form; its lane is a name."""
    if series.x_end is None:
        return {}
    begin, end = moment_of(row[series.x]), moment_of(row[series.x_end])
    label = "" if series.colour is None else _label(row[series.colour])
    needed = _LEAST_LETTER_SHARE * (len(label) + 1) * length
    has_room = begin is not None and end is not None and end - begin >= needed
    mark = {} if series.mark is None else {"mark": moment_of(row[series.mark])}
    return {"x": begin, "x_end": end, "y": _label(row[series.y]), "label": label if has_room else ""} | mark


def _label(value: Cell) -> str:
    return f"{value:g}" if isinstance(value, float) else clean(str(value))


def _groups(series: Series, key: str) -> list[str]:
    """The labels under `key`, in the order of their first appearance."""
    return list(dict.fromkeys(_label(row[key]) for row in series.rows))


def _is_discrete(series: Series) -> bool:
    """Whether x is a list of names rather than a scale of numbers; a bar always stands on a name."""
    numeric = all(isinstance(row[series.x], int | float) for row in series.rows)
    return series.kind == "bar" or not (numeric or series.kind == "span")


def _title(series: Series) -> Spec:
    notes = " ".join(filter(None, (clean(series.note), _coinciding(series))))
    subtitle = {"subtitle": textwrap.wrap(notes, 60 if series.facet is None else 90)} if notes else {}
    return {"text": clean(series.title), "anchor": "start"} | subtitle


def _coinciding(series: Series) -> str:
    """A sentence that names the groups with equal values, which a chart cannot show well."""
    if series.colour is None or series.kind in {"bar", "span"}:
        return ""
    values: dict[str, list[object]] = {}
    for row in series.rows:
        where = [row[key] for key in (series.x, series.y, series.facet) if key is not None]
        values.setdefault(_label(row[series.colour]), []).append(where)
    alike: dict[str, list[str]] = {}
    for group, points in values.items():
        alike.setdefault(repr(points), []).append(group)
    return " ".join(f"Equal at every point: {', '.join(groups)}." for groups in alike.values() if len(groups) > 1)


def _facet(series: Series, key: str) -> Spec:
    order = [f"{clean(key)}: {group}" for group in _groups(series, key)]
    return {"field": "facet", "type": "nominal", "sort": order, "header": {"title": None}}


def _width(series: Series) -> int:
    if series.kind == "bar" and series.facet is None:
        num_bars = len(series.rows)
        return max(320, min(900, 26 * num_bars))
    return 540 if series.facet is None else 260


def _height(series: Series) -> int:
    return max(_LEAST_HEIGHT, _LANE_HEIGHT * len(_groups(series, series.y))) if series.kind == "span" else 300


def _layers(series: Series) -> list[Spec]:
    encoding = {"x": _x(series), "y": _y(series), "tooltip": _tooltip(series), **_colour(series)}
    match series.kind:
        case "bar":
            offset = {"xOffset": {"field": "colour", "sort": None}} if series.colour is not None else {}
            return [_layer(series, {"type": "bar"}, encoding | offset, first=True)]
        case "point":
            return [_layer(series, {"type": "point", "size": 70}, encoding | _shape(series), first=True)]
        case "span":
            return _span_layers(series, encoding)
        case "step":
            line = {"type": "line", "interpolate": "step-after", "strokeWidth": 2.5}
            dash = {} if _is_dense(series) else _dash(series, _DASH_PERIOD / 2)
            return [_layer(series, line, encoding | dash, first=True)]
    if _is_dense(series):
        return [_layer(series, {"type": "line", "strokeWidth": 2.5}, encoding, first=True)]
    points = {"type": "point", "filled": True}
    return [
        _layer(series, {"type": "line", "strokeWidth": 2.5}, encoding | _dash(series, _DASH_PERIOD), first=True),
        _layer(series, points, encoding | _shape(series) | _point_size(series), first=False),
    ]


def _span_layers(series: Series, encoding: Spec) -> list[Spec]:
    bar = {"type": "bar", "height": {"band": 0.7}}
    layers = [_layer(series, bar, encoding | {"x2": {"field": "x_end"}}, first=True)]
    if series.colour is not None:
        words = {"type": "text", "align": "left", "baseline": "middle", "dx": 3, "fontSize": 12, "color": "black"}
        place = {"x": encoding["x"], "y": encoding["y"], "text": {"field": "label"}}
        layers.append(_layer(series, words, place, first=False))
    if series.mark is not None:
        tick = {"type": "tick", "thickness": 4, "size": _height(series) // max(1, len(_groups(series, series.y)))}
        layers.append(_layer(series, tick, encoding | {"x": encoding["x"] | {"field": "mark"}}, first=False))
    return layers


def _is_dense(series: Series) -> bool:
    """More points on a line than marks could tell apart."""
    return len({row[series.x] for row in series.rows}) > _MAX_MARKED_POINTS


def _layer(series: Series, mark: Spec, encoding: Spec, *, first: bool) -> Spec:
    if series.colour is None:
        return {"mark": mark, "encoding": encoding}
    faded = {"opacity": {"condition": {"param": "picked", "value": 1}, "value": 0.12}}
    pick = [{"name": "picked", "select": {"type": "point", "fields": ["colour"]}, "bind": "legend"}]
    return {"mark": mark, "encoding": encoding | faded} | ({"params": pick} if first else {})


def _x(series: Series) -> Spec:
    title = name_with_unit(series.x, series.x_unit)
    if _is_discrete(series):
        return {"field": "x", "type": "ordinal", "sort": None, "title": title, "axis": {"labelAngle": _angle(series)}}
    values = sorted({cell for row in series.rows if isinstance(cell := row[series.x], int | float)})
    few = len(values) <= _MAX_TICKS_FROM_DATA and series.kind != "span"
    axis = ({"format": ".4~g", "values": values} if few else {}) | _axis(values)
    scale = {"zero": False, "nice": False, "padding": 10}
    return {"field": "x", "type": "quantitative", "title": title, "scale": scale, "axis": axis}


def _angle(series: Series) -> int:
    return -35 if max(map(len, _groups(series, series.x)), default=0) > 8 else 0


def _y(series: Series) -> Spec:
    title = name_with_unit(series.y, series.y_unit)
    if series.kind == "span":
        return {"field": "y", "type": "nominal", "sort": _groups(series, series.y), "title": title}
    values = [row[series.y] for row in series.rows]
    if _spans_decades(series, values):
        scale: Spec = {"type": "log"}
        return {"field": "y", "type": "quantitative", "title": title, "scale": scale, "axis": {"format": "~s"}}
    scale = {"zero": _starts_at_zero(series, values)}
    return {"field": "y", "type": "quantitative", "title": title, "scale": scale, "axis": _axis(values)}


def _spans_decades(series: Series, values: Sequence[Cell]) -> bool:
    """Lines and points so far apart that a linear axis would press all but the largest ones to its foot."""
    numbers = [value for value in values if isinstance(value, int | float)]
    return series.kind in {"line", "point"} and 0 < min(numbers, default=0) * _LEAST_LOG_RATIO <= max(numbers)


def _starts_at_zero(series: Series, values: Sequence[Cell]) -> bool:
    """Bars need the zero; lines far above it are drawn larger without."""
    numbers = [value for value in values if isinstance(value, int | float)]
    return series.kind == "bar" or not numbers or min(numbers) < 0.5 * max(numbers)


def _axis(values: Sequence[Cell]) -> Spec:
    largest = max((abs(value) for value in values if isinstance(value, int | float)), default=0)
    return {"format": "~s"} if largest >= 1e5 else {}


def _tooltip(series: Series) -> list[Spec]:
    kind = "nominal" if _is_discrete(series) else "quantitative"
    shown = [
        {"field": "x", "type": kind, "title": name_with_unit(series.x, series.x_unit)},
        {"field": "y", "type": "quantitative", "title": name_with_unit(series.y, series.y_unit)},
    ]
    group = [{"field": "colour", "type": "nominal", "title": clean(series.colour)}] if series.colour is not None else []
    return group + (shown if series.x_end is None else _span_tooltip(series, shown[0]))


def _span_tooltip(series: Series, begin: Spec) -> list[Spec]:
    lane = {"field": "y", "type": "nominal", "title": clean(series.y)}
    ends = {"x_end": series.x_end, "mark": series.mark}
    titles = {field: name_with_unit(key, series.x_unit) for field, key in ends.items() if key is not None}
    return [lane, begin, *({"field": field, "type": "quantitative", "title": titles[field]} for field in titles)]


def _colour(series: Series) -> Spec:
    if series.colour is None:
        return {"color": {"value": _COLOURS[0]}}
    return {"color": _by_group(series, _COLOURS)}


def _shape(series: Series) -> Spec:
    return {} if series.colour is None else {"shape": _by_group(series, _SHAPES)}


def _dash(series: Series, period: float) -> Spec:
    lengths = _shrinking(series, period, period * _SHORTEST_DASH_SHARE)
    return {"strokeDash": _by_rank([[length, round(period - length, 2)] for length in lengths])}


def _point_size(series: Series) -> Spec:
    return {"size": _by_rank(_shrinking(series, _LARGEST_POINT, _SMALLEST_POINT))}


def _shrinking(series: Series, largest: float, smallest: float) -> list[float]:
    """One size per group, from `largest` for the first, which lies at the bottom, to `smallest` for the last."""
    num_groups = 1 if series.colour is None else max(1, len(_groups(series, series.colour)))
    step = (largest - smallest) / max(1, num_groups - 1)
    return [round(largest - rank * step, 2) for rank in range(num_groups)]


def _by_rank(looks: Sequence[object]) -> Spec:
    """A style per group as conditions, because a scale would add a separate legend."""
    later = [{"test": f"datum.rank === {rank}", "value": look} for rank, look in enumerate(looks) if rank > 0]
    return {"value": looks[0]} | ({"condition": later} if later else {})


def _by_group(series: Series, looks: Sequence[object]) -> Spec:
    assert series.colour is not None
    groups = _groups(series, series.colour)
    scale = {"domain": groups, "range": [looks[index % len(looks)] for index in range(len(groups))]}
    if series.facet is not None:
        legend: Spec = {"legend": {"orient": "bottom", "columns": _MAX_LEGEND_COLUMNS, "labelLimit": 0}}
    else:
        legend = {"legend": {"columns": -(-len(groups) // _MAX_LEGEND_ROWS), "labelLimit": 0}}
    named = {"field": "colour", "type": "nominal", "sort": None, "title": clean(series.colour)}
    return named | {"scale": scale} | legend


def _config() -> Spec:
    """Sizes a person can read; colours of text and grid are left to the page, which may be dark."""
    return {
        "font": "Liberation Sans, Arial, Helvetica, sans-serif",
        "title": {"fontSize": 16, "subtitleFontSize": 12, "offset": 14, "subtitlePadding": 6},
        "axis": {"labelFontSize": 12, "titleFontSize": 13, "titleFontWeight": "normal", "titlePadding": 10},
        "legend": {"labelFontSize": 13, "titleFontSize": 13, "symbolSize": 160, "symbolStrokeWidth": 2.5},
        "header": {"labelFontSize": 13, "titleFontSize": 13},
        "view": {"strokeOpacity": 0.3},
    }
