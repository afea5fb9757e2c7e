"""The quick chart: well-formed, with every line in its place, and safe whatever its words are."""

from __future__ import annotations

import re
from xml.etree import ElementTree as Xml

import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.core.render import to_sketch
from takeup.core.render.text import clean
from takeup.core.report import Series
from takeup.errors import BadInput

SVG = "{http://www.w3.org/2000/svg}"


def series(*points: tuple[object, object, str], kind: str = "line", title: str = "Rate") -> Series:
    rows = tuple({"t": x, "rate": y, "who": who} for x, y, who in points)
    return Series(title, "t", "rate", rows, "who", x_unit="s", y_unit="bit/s", kind=kind)  # type: ignore[arg-type]


def drawn(chart: Series) -> Xml.Element:
    return Xml.fromstring(to_sketch(chart))


def words(chart: Series) -> list[str]:
    return [str(text.text) for text in drawn(chart).iter(f"{SVG}text")]


def lines(chart: Series) -> list[str]:
    """The paths of the lines, without those of the legend."""
    paths = [path.get("d", "") for path in drawn(chart).iter(f"{SVG}path") if path.get("class") == "line"]
    return [path for path in paths if not path.endswith("h24")]


def test_a_chart_names_its_title_and_its_axes_with_units() -> None:
    found = words(series((0, 1.0, "a"), (1, 2.0, "a")))

    assert {"Rate", "rate (bit/s)", "t (s)"} <= set(found)


def test_points_stand_where_their_numbers_are() -> None:
    (path,) = lines(series((0, 0.0, "a"), (5, 1.0, "a"), (10, 2.0, "a")))
    places = [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", path)]
    (x0, y0), (x1, y1), (x2, y2) = places

    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.11)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.11)
    assert x0 < x1
    assert y0 > y1


def test_steps_go_across_and_then_up() -> None:
    (path,) = lines(series((0, 0.0, "a"), (5, 1.0, "a"), kind="step"))

    assert re.fullmatch(r"M[\d.]+ [\d.]+H[\d.]+V[\d.]+", path)


def test_several_lines_have_a_legend_and_one_has_none() -> None:
    one, two = series((0, 1.0, "a"), (1, 2.0, "a")), series((0, 1.0, "a"), (1, 2.0, "a"), (0, 3.0, "b"))

    assert len(lines(two)) == 2
    assert {"a", "b"} <= set(words(two))
    assert "a" not in words(one)


def test_ticks_are_round_numbers_within_the_axes() -> None:
    found = words(series((0, 0.0, "a"), (20, 0.28, "a")))

    assert {"0", "5", "10", "15", "20", "0.05", "0.1", "0.25"} <= set(found)
    assert "0.3" not in found


def test_values_far_above_zero_are_drawn_without_it() -> None:
    assert "0" not in words(series((1, 100.0, "a"), (2, 101.0, "a")))


@pytest.mark.parametrize(
    "points", [(), ((1, 1.0, "a"),), ((1, None, "a"), (2, 2.0, "a")), ((0, 0.0, "a"), (0, 0.0, "a"))]
)
def test_little_to_draw_is_still_a_chart(points: tuple[tuple[object, object, str], ...]) -> None:
    assert drawn(series(*points)).tag == f"{SVG}svg"


def test_bars_are_refused() -> None:
    with pytest.raises(BadInput, match="a sketch has lines or steps, not 'bar'"):
        to_sketch(series((0, 1.0, "a"), kind="bar"))


@given(
    st.text(max_size=20),
    st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9), st.text(max_size=3)), max_size=12),
)
def test_any_words_and_numbers_make_a_well_formed_image(title: str, points: list[tuple[float, float, str]]) -> None:
    chart = series(*points, title=title)

    assert len(lines(chart)) == len({clean(who) for *_, who in points})
