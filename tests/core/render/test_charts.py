"""Charts: specifications that say what is drawn, and drawings that come out of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import pytest

from takeup.core.render.charts import to_png, to_svg, vega_lite
from takeup.core.report import Cell, Report, Series

KINDS: Any = ["line", "bar", "point", "step"]
POLICIES = ("lru", "lrc", "lerc", "belady", "lfu")


def sweep(kind: Any = "line", facet: str | None = None, policies: Sequence[str] = POLICIES[:2]) -> Series:
    rows = tuple(
        {"policy": policy, "cache size": size, "hits": size / 100 + rank / 10, "engine": engine}
        for engine in ("simulated", "dask")
        for rank, policy in enumerate(policies)
        for size in (20, 60, 95)
    )
    return Series(
        "Hits by size", "cache size", "hits", rows, colour="policy", facet=facet, x_unit="%", kind=kind, note="Mean."
    )


def turns(facet: str | None = None, mark: str | None = "due") -> Series:
    rows: tuple[dict[str, Cell], ...] = (
        {"core": "core 1", "task": "a", "time": 0.0, "until": 4.0, "due": 6.0, "site": "north"},
        {"core": "core 2", "task": "b", "time": 1.0, "until": 9.0, "due": None, "site": "north"},
        {"core": "core 1", "task": "a long name", "time": 4.0, "until": 4.1, "due": 10.0, "site": "south"},
    )
    return Series("Turns", "time", "core", rows, "task", facet, "s", kind="span", x_end="until", mark=mark)


def layers_of(series: Series) -> list[dict[str, Any]]:
    spec = vega_lite(series)
    layers: list[dict[str, Any]] = spec.get("spec", spec)["layer"]
    return layers


def words_of(svg: str) -> str:
    return " ".join(ElementTree.fromstring(svg).itertext())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("facet", [None, "engine"])
def test_every_kind_is_drawn_with_its_titles_and_groups(kind: Any, facet: str | None) -> None:
    words = words_of(to_svg(sweep(kind, facet)))

    for expected in ("Hits by size", "Mean.", "cache size (%)", "hits", "policy", "lru", "lrc"):
        assert expected in words
    assert ("engine: simulated" in words) == (facet is not None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_chart_without_groups_is_drawn_without_a_legend(kind: Any) -> None:
    series = Series("Plain", "x", "y", tuple({"x": x, "y": x * x} for x in range(4)), kind=kind)

    assert "color" in layers_of(series)[0]["encoding"]
    assert ElementTree.fromstring(to_svg(series)).findall(".//*[@aria-roledescription='legend']") == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_chart_of_nothing_is_drawn(kind: Any) -> None:
    assert "Empty" in words_of(to_svg(Series("Empty", "x", "y", (), colour="policy", facet="engine", kind=kind)))


def test_a_png_is_a_picture_and_the_same_every_time() -> None:
    first, second = to_png(sweep()), to_png(sweep())

    assert first.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(first) > 5_000
    assert first == second


def test_svg_is_the_same_every_time() -> None:
    assert to_svg(sweep()) == to_svg(sweep())


def test_a_line_has_points_and_every_group_its_own_colour_and_shape() -> None:
    line, points = layers_of(sweep(policies=POLICIES))
    looks = [points["encoding"][channel]["scale"]["range"] for channel in ("color", "shape")]

    assert (line["mark"]["type"], points["mark"]["type"]) == ("line", "point")
    assert all(len(set(look)) == len(POLICIES) for look in looks)
    assert points["encoding"]["color"]["scale"]["domain"] == list(POLICIES)


@pytest.mark.parametrize("kind", ["line", "step"])
def test_a_curve_of_many_points_is_a_plain_line(kind: Any) -> None:
    rows: tuple[dict[str, Cell], ...] = tuple({"x": x, "y": x * x, "c": "a"} for x in range(60))
    (line,) = layers_of(Series("curve", "x", "y", rows, "c", kind=kind))

    assert line["mark"]["type"] == "line"
    assert "strokeDash" not in line["encoding"]


def test_dashes_share_a_period_and_later_lines_cover_less_of_it() -> None:
    dash = layers_of(sweep(policies=POLICIES))[0]["encoding"]["strokeDash"]
    dashes = [dash["value"]] + [condition["value"] for condition in dash["condition"]]

    assert {round(drawn + gap, 6) for drawn, gap in dashes} == {36.0}
    assert [drawn for drawn, _ in dashes] == sorted({drawn for drawn, _ in dashes}, reverse=True)


def test_points_of_later_groups_fit_inside_those_of_earlier_ones() -> None:
    size = layers_of(sweep(policies=POLICIES))[1]["encoding"]["size"]
    sizes = [size["value"]] + [condition["value"] for condition in size["condition"]]

    assert sizes == sorted(set(sizes), reverse=True)


def test_groups_with_equal_values_are_named_in_the_subtitle() -> None:
    rows = tuple({"policy": policy, "x": x, "y": x} for policy in POLICIES[:3] for x in (1, 2))
    apart = tuple({"policy": "far", "x": x, "y": x + 1} for x in (1, 2))
    series = Series("Same", "x", "y", rows + apart, colour="policy")

    assert vega_lite(series)["title"]["subtitle"] == ["Equal at every point: lru, lrc, lerc."]


def test_more_groups_than_colours_are_still_drawn() -> None:
    svg = to_svg(sweep(policies=[f"policy {number}" for number in range(12)]))

    assert "policy 11" in words_of(svg)


@pytest.mark.parametrize(("num_groups", "columns"), [(12, 1), (13, 2), (25, 3)])
def test_a_long_legend_stands_in_columns(num_groups: int, columns: int) -> None:
    colour = layers_of(sweep(policies=[f"policy {number}" for number in range(num_groups)]))[0]["encoding"]["color"]

    assert colour.get("legend", {}).get("columns") == columns


def test_the_legend_of_facets_is_under_them_where_long_names_fit() -> None:
    colour = layers_of(sweep(facet="engine"))[0]["encoding"]["color"]

    assert (colour["legend"]["orient"], colour["legend"]["labelLimit"]) == ("bottom", 0)


def test_ticks_of_few_values_show_all_their_digits() -> None:
    series = Series("Latency", "rate", "s", tuple({"rate": rate, "s": 1.0} for rate in (0.25, 0.5, 1.0)))

    assert {"0.25", "0.5"} <= set(words_of(to_svg(series)).split())


@pytest.mark.parametrize(
    ("values", "kind", "is_log"),
    [((2, 99), "line", False), ((2, 100), "line", True), ((0, 100), "line", False), ((2, 100), "bar", False)],
)
def test_lines_that_span_decades_have_a_logarithmic_axis(values: tuple[float, float], kind: Any, is_log: bool) -> None:
    series = Series("Latency", "rate", "s", tuple({"rate": value, "s": value} for value in values), kind=kind)

    assert (layers_of(series)[0]["encoding"]["y"]["scale"].get("type") == "log") is is_log


def test_facets_stand_side_by_side_in_the_order_of_the_data_with_one_y_axis() -> None:
    spec = vega_lite(sweep(facet="engine"))

    assert spec["columns"] == 2
    assert spec["facet"]["sort"] == ["engine: simulated", "engine: dask"]
    assert "resolve" not in spec  # shared scales are what Vega-Lite does unless told otherwise


@pytest.mark.parametrize(
    ("values", "kind", "zero"),
    [((90, 95), "line", False), ((10, 95), "line", True), ((90, 95), "bar", True), ((None, None), "line", True)],
)
def test_the_y_axis_starts_at_zero_unless_lines_are_far_above_it(
    values: tuple[Cell, ...], kind: Any, zero: bool
) -> None:
    series = Series("t", "x", "y", tuple({"x": x, "y": y} for x, y in enumerate(values)), kind=kind)

    assert layers_of(series)[0]["encoding"]["y"]["scale"]["zero"] is zero


def test_large_numbers_are_shortened_on_the_axis() -> None:
    series = Series("t", "bytes", "y", tuple({"bytes": n * 10**9, "y": n} for n in range(1, 4)))

    assert "2G" in words_of(to_svg(series))


def test_names_on_x_keep_the_order_of_the_data() -> None:
    series = Series("t", "load", "y", tuple({"load": load, "y": 1} for load in ("zip", "all", "join")))

    words = words_of(to_svg(series)).split()

    assert words.index("zip") < words.index("all") < words.index("join")


def test_bars_of_groups_stand_side_by_side() -> None:
    assert layers_of(sweep("bar"))[0]["encoding"]["xOffset"]["field"] == "colour"


def test_keys_that_look_like_paths_are_plain_names() -> None:
    series = Series("t", "a.b[0]", "c'd", ({"a.b[0]": 1, "c'd": 2},))

    assert vega_lite(series)["data"]["values"] == [{"x": 1, "y": 2}]
    assert "a.b[0]" in words_of(to_svg(series))


def test_hostile_text_leaves_well_formed_svg(hostile_report: Report) -> None:
    svg = to_svg(hostile_report.series[0])

    assert "</script>" not in svg
    assert "</script>" in words_of(svg)


def test_gaps_in_the_data_are_drawn_as_gaps() -> None:
    series = Series("t", "x", "y", ({"x": 1, "y": 2}, {"x": 2, "y": None}, {"x": 3, "y": 1}))

    assert to_svg(series).count('aria-roledescription="point"') == 2


@pytest.mark.parametrize("facet", [None, "site"])
@pytest.mark.parametrize("mark", [None, "due"])
def test_spans_are_drawn_in_their_lanes(facet: str | None, mark: str | None) -> None:
    words = words_of(to_svg(turns(facet, mark)))

    for expected in ("Turns", "time (s)", "core 1", "core 2", "task", "a long name"):
        assert expected in words


def test_a_span_reaches_from_one_key_to_another_and_its_mark_is_a_tick() -> None:
    bars, names, ticks = layers_of(turns())

    assert (bars["encoding"]["x"]["field"], bars["encoding"]["x2"]["field"]) == ("x", "x_end")
    assert names["encoding"]["text"]["field"] == "label"
    assert (ticks["mark"]["type"], ticks["encoding"]["x"]["field"]) == ("tick", "mark")
    assert ticks["mark"]["size"] == 60  # the whole of a lane, so that it stands out from the bars
    assert to_svg(turns()).count('aria-roledescription="tick"') == 2  # one span has none


def test_a_name_stands_in_its_span_only_where_it_fits() -> None:
    values = vega_lite(turns())["data"]["values"]

    assert [value["label"] for value in values] == ["a", "b", ""]


def test_lanes_keep_the_order_of_the_data_and_each_has_its_height() -> None:
    rows: tuple[dict[str, Cell], ...] = tuple({"lane": f"lane {9 - lane}", "from": 0, "to": 1} for lane in range(9))
    spec = vega_lite(Series("t", "from", "lane", rows, kind="span", x_end="to"))

    assert spec["layer"][0]["encoding"]["y"]["sort"] == [f"lane {9 - lane}" for lane in range(9)]
    assert (
        spec["height"] == 2 * vega_lite(Series("t", "from", "lane", rows[:1], kind="span", x_end="to"))["height"] + 66
    )


def test_an_empty_chart_of_spans_is_drawn() -> None:
    assert "Empty" in words_of(to_svg(Series("Empty", "x", "y", (), "c", kind="span", x_end="z")))
