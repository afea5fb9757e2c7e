"""`takeup tour`: run the nine systems, print a line for each, and write a page of cards with a report behind each."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from takeup.core.file_kinds import rows_of
from takeup.core.files import write_atomically
from takeup.core.report import Report
from takeup.errors import UnknownName
from takeup.output import say, with_provenance
from takeup.rerun import run_scenario
from takeup.tour.stops import GUIDES, STOPS, Measure, TourStop

if TYPE_CHECKING:
    from takeup.core.render.cards import Bar, Card

TITLE = "takeup: nine systems, one number each"
INTRODUCTION = (
    "Computed on this machine just now, with the same seed everywhere. The green bar is ours; the others are the best "
    "alternatives. Each card opens: what the system does, where it loses, all tables and charts."
)


@dataclass(frozen=True, slots=True)
class Shown:
    """The numbers of a stop: by label in the order of the report, all with the decimals and the unit to show."""

    measure: Measure
    values: dict[str, float]

    @property
    def ours(self) -> str:
        """Our number as text."""
        return self.text(self.measure.ours)

    @property
    def best(self) -> str:
        """The label of the best alternative; the first of those that are equal."""
        others = [label for label in self.values if label != self.measure.ours]
        sign = -1 if self.measure.more_is_better else 1
        return min(others, key=lambda label: sign * self.values[label])

    def text(self, label: str) -> str:
        """A number with its decimals and its unit."""
        return f"{self.values[label]:,.{self.measure.digits}f}{self.measure.unit}"


@click.command()
@click.option("--out", default="takeup-tour", show_default=True, type=click.Path(path_type=Path), help="The folder.")
@click.option("--only", help="Only these systems, separated by commas, such as lrc,gfs.")
@click.option("--verbose", is_flag=True, help="Print all tables as well.")
@click.option("--json", "as_json", is_flag=True, help="Print all reports as JSON instead of text.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def tour(out: Path, only: str | None, verbose: bool, as_json: bool, quiet: bool) -> None:
    """Nine systems on workloads where they matter: one line each, and a page of cards in a folder."""
    from takeup.core.render import to_text
    from takeup.core.render.cards import cards_html

    stops, reports = chosen(only), {}
    if not quiet:
        say("the first time, kernels are compiled, which takes a minute or two")
    for stop in stops:
        report = with_provenance(run_scenario(dict(stop.scenario), "tour", quiet=True))
        reports[stop.system] = report
        if not as_json:
            click.echo(line_of(stop, report) + (f"\n\n{to_text(report)}" if verbose else ""))
    _write_reports(reports, out)
    page = cards_html((card_of(stop, reports[stop.system]) for stop in stops), TITLE, INTRODUCTION)
    write_atomically(out / "index.html", page)
    if as_json:
        click.echo(json.dumps({system: json.loads(report.to_json()) for system, report in reports.items()}))
    say(f"\nopen {out / 'index.html'} in a browser: a card for each, with a chart and all tables behind it")


def chosen(only: str | None) -> list[TourStop]:
    """The stops that are named, in the order of the tour; all without a name."""
    known = {stop.system: stop for stop in STOPS}
    names = only.split(",") if only else list(known)
    for name in names:
        if name not in known:
            raise UnknownName("stop of the tour", name, known)
    return [stop for stop in STOPS if stop.system in names]


def line_of(stop: TourStop, report: Report) -> str:
    """The line of a system: our number compared with that of the best alternative."""
    shown = shown_of(stop.measure, report)
    best = f"{shown.best} {shown.text(shown.best)}"
    return f"{stop.system:15}{shown.ours:>8}  ({best})  {shown.measure.what}"


def shown_of(measure: Measure, report: Report) -> Shown:
    """The rows of a report that a measure names."""
    rows = [row for row in rows_of(report, measure.table) if _matches(row, measure)]
    values = {str(row[measure.label]): measure.scale * float(row[measure.column]) for row in rows}
    assert measure.ours in values, f"{report.title} has no row for {measure.ours!r}"
    return Shown(measure, values)


def _matches(row: dict[str, Any], measure: Measure) -> bool:
    """Whether the row is shown; sizes of a cache are whole per cent up to rounding."""
    cells = {name: row[name] for name in measure.where}
    return all(
        round(cell, 3) == wanted if isinstance(cell, float) else cell == wanted
        for cell, wanted in zip(cells.values(), measure.where.values(), strict=True)
    )


def card_of(stop: TourStop, report: Report) -> "Card":
    """The card of a system."""
    from takeup.core.render.cards import Card

    shown = shown_of(stop.measure, report)
    return Card(
        stop.system,
        stop.problem,
        shown.ours,
        f"{stop.measure.what}; best alternative: {shown.best}, {shown.text(shown.best)}",
        tuple(_bars(shown)),
        stop.why,
        stop.command,
        f"{GUIDES}/{stop.guide}.md",
        f"{stop.system}/report.html",
    )


def _bars(shown: Shown) -> "Iterable[Bar]":
    from takeup.core.render.cards import Bar

    for label, value in shown.values.items():
        yield Bar(label, value, shown.text(label), label == shown.measure.ours)


def _write_reports(reports: dict[str, Report], out: Path) -> None:
    """A page with charts and the report as JSON for each system; the page leads back to the cards."""
    from takeup.core.render import to_html

    for system, report in reports.items():
        write_atomically(out / system / "report.json", report.to_json())
        write_atomically(out / system / "report.html", to_html(report, [("All systems", f"../index.html#{system}")]))
