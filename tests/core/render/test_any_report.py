"""Whatever a report says, every format can say it."""

from __future__ import annotations

from html.parser import HTMLParser
from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from takeup.core.render import to_html, to_svg, to_text
from takeup.core.report import Cell, Check, Column, Report, Series, Table

finite = st.floats(allow_nan=False, allow_infinity=False)
words = st.text(st.characters(codec=None), max_size=12)  # any code point, even those that cannot be encoded
cells: st.SearchStrategy[Cell] = st.one_of(st.none(), st.booleans(), st.integers(), finite, words)
tables = st.builds(
    lambda title, name, unit, digits, rows: Table(title, (Column(name, unit, digits),), tuple((row,) for row in rows)),
    words,
    words,
    words,
    st.integers(0, 6),
    st.lists(cells, max_size=4),
)
checks = st.builds(
    Check,
    words,
    st.none() | finite | words,
    st.none() | finite | words,
    words,
    st.booleans(),
    st.sampled_from(["paper", "unverified", "bar", "measured"]),
    st.none() | finite,
    words,
    st.sampled_from(["near", "at least", "at most"]),
)
reports = st.builds(
    lambda title, scenario, shown, checked, notes: Report(
        title, "d", scenario, 1, tables=tuple(shown), checks=tuple(checked), notes=tuple(notes)
    ),
    words,
    st.dictionaries(words, cells, max_size=2),
    st.lists(tables, max_size=2),
    st.lists(checks, max_size=2),
    st.lists(words, max_size=2),
)
series = st.builds(
    lambda title, kind, rows: Series(title, "x", "y", tuple(rows), colour="group", facet="part", kind=kind),
    words,
    st.sampled_from(["line", "bar", "point", "step"]),
    st.lists(st.fixed_dictionaries({"x": cells, "y": st.none() | finite, "group": cells, "part": words}), max_size=4),
)
spans = st.builds(
    lambda title, rows, mark: Series(
        title, "x", "y", tuple(rows), colour="group", facet="part", kind="span", x_end="z", mark=mark
    ),
    words,
    st.lists(
        st.fixed_dictionaries({"x": cells, "z": cells, "due": cells, "y": cells, "group": cells, "part": words}),
        max_size=4,
    ),
    st.sampled_from([None, "due"]),
)


class TagCounter(HTMLParser):
    """Counts how often each tag is opened and closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.balance: dict[str, int] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.balance[tag] = self.balance.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        self.balance[tag] -= 1


@settings(deadline=None)
@given(reports)
def test_text_holds_no_control_signs_and_can_be_encoded(report: Report) -> None:
    text = to_text(report, width=80)

    assert all(line.isprintable() for line in text.splitlines())
    text.encode()


@settings(deadline=None)
@given(reports)
def test_pages_close_every_tag_they_open(report: Report) -> None:
    page = to_html(report)

    assert {tag for tag, count in TagCounter(page).balance.items() if count} == {"meta"}
    page.encode()


@settings(deadline=None, max_examples=40)
@given(series | spans)
def test_charts_are_well_formed(drawn: Series) -> None:
    assert ElementTree.fromstring(to_svg(drawn)).tag.endswith("svg")


@settings(deadline=None)
@given(spans)
def test_spans_in_letters_hold_no_control_signs(drawn: Series) -> None:
    report = Report("t", "d", {}, 1, series=(drawn,))
    text = to_text(report, width=80)

    assert all(line.isprintable() for line in text.splitlines())
    assert {tag for tag, count in TagCounter(to_html(report)).balance.items() if count} == {"meta"}
    text.encode()
