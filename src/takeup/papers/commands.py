"""`takeup reproduce PAPER`: the paper's number, ours, and the difference."""

from pathlib import Path

import click

from takeup.output import output_options, show


@click.command()
@click.argument("paper")
@output_options
@click.pass_context
def reproduce(ctx: click.Context, paper: str, as_json: bool, out: Path | None, quiet: bool) -> None:
    """Run the experiments of PAPER: adaptra, edge, falcon, gfs, instgenie, lerc, lrc, qoe or swiftdiffusion.

    Exit code 1 if a check against a verified number fails.
    """
    from takeup.papers import reproduce as run

    report = run(paper, quiet=quiet)
    show(report, as_json=as_json, out=out)
    ctx.exit(0 if report.holds else 1)
