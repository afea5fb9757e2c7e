"""The verb `watch`: parse, call, tell."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

__all__ = ["watch"]


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for every event; the job prints to stderr.")
@click.option("--out", type=click.Path(path_type=Path), help="Write a report and a Perfetto trace of every event here.")
@click.option("--quiet", is_flag=True, help="Say nothing but events.")
@click.option("--metrics", "metrics_port", type=int, help="Serve Prometheus metrics on this port of this machine.")
@click.option("--confirm", is_flag=True, help="Pause the job for a moment to test ranks and links before acting.")
@click.option("--no-action", is_flag=True, help="Change nothing: say only who is slow.")
@click.option("--restart-after", "restart_after_s", type=float, help="Save and restart after so many lost seconds.")
@click.option("--on-unhealthy", help="Run this for every slow rank; {rank}, {host}, {kind}, {factor} are filled in.")
@click.option("--shim", type=click.Path(path_type=Path), help="Note calls of NCCL with this compiled shim instead.")
@click.option("--listen", metavar="[HOST:]PORT", help="Also watch ranks of other machines, which report here.")
@click.option(
    "--report-to", metavar="HOST:PORT", help="Let the machine that listens there watch the ranks of this one."
)
def watch(command: tuple[str, ...], as_json: bool, out: Path | None, quiet: bool, **options: Any) -> None:
    """Run COMMAND, such as torchrun and its arguments, and say which rank or link of the job is slow.

    Give COMMAND after --. The job needs no change; with Batches in its script a slow rank gets less work by itself.
    """
    from takeup.training.engines.pytorch.watch.session import Settings
    from takeup.training.experiment.watch import Watch
    from takeup.training.experiment.watch import watch as run

    settings = Settings(options.pop("confirm"), not options.pop("no_action"), options.pop("restart_after_s"))
    token = os.environ.get("TAKEUP_WATCH_TOKEN", "")
    asked = Watch(as_json, out, quiet, settings=settings, token=token, **options)
    code = run(command, asked, lambda text: click.echo(text, err=True), click.echo)
    if code:
        click.get_current_context().exit(1)
