"""`takeup tour`: run the nine systems, print a line for each, and write a page of cards with a report behind each."""

import json
from pathlib import Path

import click

from takeup.core.files import write_atomically
from takeup.core.report import Report
from takeup.errors import UnknownName
from takeup.output import say, with_provenance
from takeup.rerun import run_scenario
from takeup.tour.stops import STOPS, TourStop, shown_of


@click.command()
@click.option("--out", default="takeup-tour", show_default=True, type=click.Path(path_type=Path), help="The folder.")
@click.option("--only", help="Only these systems, separated by commas, such as lrc,gfs.")
@click.option("--verbose", is_flag=True, help="Print all tables as well.")
@click.option("--json", "as_json", is_flag=True, help="Print all reports as JSON instead of text.")
@click.option("--quiet", is_flag=True, help="Show no progress.")
def tour(out: Path, only: str | None, verbose: bool, as_json: bool, quiet: bool) -> None:
    """Nine systems on workloads where they matter: one line each, and a page of cards in a folder."""
    from takeup.core.render import to_text
    from takeup.tour.cards import cards_html

    stops, reports = chosen(only), {}
    if not quiet:
        say("the first time, kernels are compiled, which takes a minute or two")
    for stop in stops:
        report = with_provenance(run_scenario(dict(stop.scenario), "tour", quiet=True))
        reports[stop.system] = report
        if not as_json:
            click.echo(line_of(stop, report) + (f"\n\n{to_text(report)}" if verbose else ""))
    _write_reports(reports, out)
    write_atomically(out / "index.html", cards_html(shown_of(stop, reports[stop.system]) for stop in stops))
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
    shown = shown_of(stop, report)
    best = f"{shown.best} {shown.text(shown.best)}"
    return f"{stop.system:15}{shown.text(stop.measure.ours):>8}  ({best})  {stop.measure.what}"


def _write_reports(reports: dict[str, Report], out: Path) -> None:
    """A page with charts and the report as JSON for each system; the page leads back to the cards."""
    from takeup.core.render import to_html

    for system, report in reports.items():
        write_atomically(out / system / "report.json", report.to_json())
        write_atomically(out / system / "report.html", to_html(report, [("All systems", f"../index.html#{system}")]))
