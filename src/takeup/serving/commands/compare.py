"""`takeup serving compare DESIGNS`: compare designs on the same requests, at several arrival rates."""

from __future__ import annotations

from pathlib import Path

import click

from takeup.output import output_options, show
from takeup.serving.commands.simulate import CHARTS, queue_options, report_of


@click.command()
@click.argument("designs", default="diffusers,static,nirvana,katz,takeup")
@click.option("--rates", default="0.25,0.5,1.0", show_default=True, help="Requests a second, separated by commas.")
@queue_options
@output_options
def compare(designs: str, rates: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Compare DESIGNS (comma-separated) on the same requests and number of GPUs, at several arrival rates."""
    show(report_of("compare", designs, rates, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)
