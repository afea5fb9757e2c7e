"""The `takeup caching` commands: parse, call, show."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from takeup.errors import BadInput, UnknownName
from takeup.output import output_options, show

Command = TypeVar("Command", bound=Callable[..., Any])
CHARTS = Path("takeup-out")
DEFAULT_SIZES = "20%,40%,60%,80%"


def source_options(command: Command) -> Command:
    """Options for the source of the accesses."""
    for option in (
        click.option("--allow-truncated", is_flag=True, help="Accept the log of a running or killed application."),
        click.option("--seed", default=1, show_default=True, help="Seed of the generated workload."),
        click.option("--trace", help="A job graph or a Spark event log, instead of a workload."),
        click.option("--workload", help="An embedded workload: zip, pagerank, components, svdpp or scan."),
    ):
        command = option(command)
    return command


def engine_options(command: Command) -> Command:
    """Options of the simulated engine."""
    for option in (
        click.option("--plain", is_flag=True, help="Use the readable engine instead of the compiled one."),
        click.option("--disk-bytes-per-s", default=100e6, show_default=True, help="Bandwidth of a worker's disk."),
        click.option("--profile", default="recurring", show_default=True, help="What is known: online or recurring."),
        click.option("--cost-model", default="additive", show_default=True, help="additive or all-or-nothing."),
        click.option("--miss", default="disk", show_default=True, help="A lost block: disk or recompute."),
    ):
        command = option(command)
    return command


def _report(verb: str, policies: str, capacity: str, *, on: str | None, quiet: bool, **settings: object) -> Any:
    from takeup.caching.experiment import CachingScenario, run
    from takeup.core.scenario import validate

    if settings.get("workload") is None and settings.get("trace") is None:
        settings["workload"] = "zip"
    values = {"verb": verb, "policies": policies.split(","), "capacities": capacity.split(","), **settings}
    return run(validate(CachingScenario, values, "options"), on=on, quiet=quiet)


def _single(policy: str, verb: str) -> str:
    if "," in policy:
        raise BadInput(f"{policy!r} names several policies; `{verb}` takes one, `compare` takes a list")
    return policy


@click.group()
def caching() -> None:
    """DAG-aware cache eviction for data-parallel jobs (LRC, LERC).

    Policies: lru spark lrc lerc mrd furthest_next_use dag belady; `lerc+admission` lets one refuse blocks.
    Sizes: `2GB`, `512MiB`, or a share of the working set such as `40%`.
    """


@caching.command()
@click.argument("policy")
@click.option("--capacity", default="40%", show_default=True, help="Size of the cache.")
@click.option("--reasons", is_flag=True, help="Show the first decisions with their reasons instead of the totals.")
@source_options
@engine_options
@output_options
def simulate(policy: str, capacity: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Simulate one POLICY in virtual time."""
    policy = _single(policy, "simulate")
    show(_report("simulate", policy, capacity, on=None, quiet=quiet, **settings), as_json=as_json, out=out)


@caching.command()
@click.argument("policies")
@click.option("--capacity", default=DEFAULT_SIZES, show_default=True, help="Sizes of the cache, separated by commas.")
@click.option("--on", help="Sweep on the Dask cluster at this address, such as tcp://127.0.0.1:8786.")
@source_options
@engine_options
@output_options
def compare(
    policies: str, capacity: str, on: str | None, as_json: bool, out: Path | None, quiet: bool, **settings: object
) -> None:
    """Compare POLICIES, separated by commas, at several sizes: one table, one chart."""
    report = _report("compare", policies, capacity, on=on, quiet=quiet, **settings)
    show(report, as_json=as_json, out=out, charts=CHARTS)


@caching.command()
@click.argument("policy")
@click.option("--engine", default="spark", show_default=True, help="The engine to run on: spark.")
@click.option("--dry-run", is_flag=True, help="Print the command with the plug-in and run nothing.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@output_options
def run(
    policy: str, engine: str, command: tuple[str, ...], dry_run: bool, as_json: bool, out: Path | None, quiet: bool
) -> None:
    """Run a COMMAND such as `spark-submit job.py` with our plug-in under one POLICY, and show what it did.

    The exit code is that of the command. For a running Dask cluster, install the plug-in from Python:
    `takeup.caching.engines.dask.install(client)`.
    """
    if engine != "spark":
        raise UnknownName("caching engine", engine, ["spark"])
    from takeup.caching.engines.spark.session import counts_report, run_submit, submit_command

    if dry_run:
        click.echo(" ".join(submit_command(_single(policy, "run"), command)))
        return
    code, counts = run_submit(_single(policy, "run"), command)
    if counts is not None:
        show(counts_report(counts, "Spark"), as_json=as_json, out=out)
    click.get_current_context().exit(code)


@caching.command()
@click.argument("eventlog")
@click.option("--policies", default="spark,lrc,lerc,dag,belady", show_default=True, help="Compared with the first one.")
@click.option(
    "--capacity",
    default="recorded,50%,100%",
    show_default=True,
    help="Sizes of the memory, separated by commas: as recorded, in bytes, or a share of the live blocks.",
)
@click.option("--miss", default="level", show_default=True, help="A lost block: level (of storage), disk, recompute.")
@click.option("--profile", default="online", show_default=True, help="What is known: online or recurring.")
@click.option("--allow-truncated", is_flag=True, help="Accept the log of a running or killed application.")
@output_options
def whatif(
    eventlog: str, policies: str, capacity: str, as_json: bool, out: Path | None, quiet: bool, **settings: object
) -> None:
    """Predict another policy or another size of memory for the Spark application of EVENTLOG, with ranges.

    `spark` is what stock Spark does. Needs a log with `spark.eventLog.logBlockUpdates.enabled=true`.
    """
    report = _report("whatif", policies, capacity, on=None, quiet=quiet, trace=eventlog, **settings)
    show(report, as_json=as_json, out=out, charts=CHARTS)


@caching.command()
@click.argument("eventlog", type=Path)
@click.argument("file", type=Path)
@click.option("--allow-truncated", is_flag=True, help="Accept the log of a running or killed application.")
def profile(eventlog: Path, file: Path, allow_truncated: bool) -> None:
    """Write what the Spark application of EVENTLOG reads to FILE, a profile for the next run with the plug-in.

    The plug-in takes it with `configure(..., profile=FILE)` or with the setting `spark.takeup.profile`.
    """
    from takeup.caching.engines.spark.event_log_profile import write_profile
    from takeup.caching.traces.spark_events import find_log, read_lines

    lines = read_lines(find_log(eventlog), allow_truncated=allow_truncated)
    write_profile(file, (line.event for line in lines))
    click.echo(f"wrote {file}", err=True)
