"""How every command shows a report: text or JSON on stdout, files in a folder, everything else on stderr."""

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from takeup import __version__
from takeup.core.report import Report

Command = TypeVar("Command", bound=Callable[..., Any])


def output_options(command: Command) -> Command:
    """The options that all commands share: `--json`, `--out` and `--quiet`."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print the report as JSON instead of text."),
        click.option("--out", type=click.Path(path_type=Path), help="Write report and charts into this folder."),
        click.option("--quiet", is_flag=True, help="Show no progress."),
    ):
        command = option(command)
    return command


def show(report: Report, *, as_json: bool, out: Path | None, charts: Path | None = None) -> None:
    """Print the report; write everything to `out` if it is given, else only its first chart to `charts`.

    Without the extra `charts`, one line says how to get it.
    """
    from takeup.core.render import missing_charts, to_text, write

    report = with_provenance(report)
    # First of all, so that a folder that cannot be written does not cost the result of a long run.
    click.echo(report.to_json() if as_json else to_text(report, colour=sys.stdout.isatty()), nl=False)
    paths = write(report, out) if out else []
    if charts and not out and not as_json:
        paths = write(replace(report, series=report.series[:1]), charts, ("png",))
    for path in paths:
        say(f"wrote {path}")
    if (out or (charts and not as_json)) and report.series and (sentence := missing_charts()):
        say(sentence)


def with_provenance(report: Report) -> Report:
    """The report with the version, the time and the machine that made it."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return replace(report, version=__version__, created=now, machine=machine)


def say(text: str) -> None:
    """Print a line for the user, on stderr."""
    click.echo(text, err=True)
