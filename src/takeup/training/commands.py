"""CLI commands of the training domain: parse options, run the scenario, print the report."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from takeup.output import output_options, say, show

Command = TypeVar("Command", bound=Callable[..., Any])
CHARTS = Path("takeup-out")

# Options by name, in reverse order of display.
PIPELINE_OPTIONS: dict[str, dict[str, Any]] = {
    "--seed": {"default": 1, "show_default": True, "help": "Seed of the random draws."},
    "--host-ms": {"default": 0.0, "show_default": True, "help": "Overhead of every operation."},
    "--hop-ms": {"default": 0.0, "show_default": True, "help": "Overhead of every message."},
    "--max-sends": {"type": int, "help": "Compute waits while this many sends are in flight; no limit if absent."},
    "--max-live": {"type": int, "help": "Micro-batches that fit into the memory of a stage; no limit if absent."},
    "--slow": {"multiple": True, "help": "A slow link, in ms: LINK:LATENCY or LINK:LATENCY+SERVICE. Repeatable."},
    "--slow-stage slow_stages": {"multiple": True, "help": "A slow stage, STAGE:FACTOR. Repeatable."},
    "--uneven": {"is_flag": True, "help": "Draw operation times around the given one."},
    "--op-ms": {"default": 10.0, "show_default": True, "help": "Duration of an operation."},
    "--microbatches num_microbatches": {"default": 24, "show_default": True, "help": "Micro-batches per iteration."},
    "--stages num_stages": {"default": 4, "show_default": True, "help": "Stages of the pipeline."},
    "--profile": {"help": "A measured pipeline, a .toml file; otherwise all operations take equally long."},
}


def pipeline_options(command: Command) -> Command:
    """Add the options that describe the pipeline and its links."""
    for name, settings in PIPELINE_OPTIONS.items():
        command = click.option(*name.split(), **settings)(command)
    return command


def _scenario(verb: str, policies: str, **settings: Any) -> Any:
    from takeup.core.scenario import validate
    from takeup.training.experiment import TrainingScenario

    values = {"verb": verb, "policies": policies.split(","), **settings}
    return validate(TrainingScenario, values, "options")


def _report(verb: str, policies: str, *, quiet: bool, **settings: Any) -> Any:
    from takeup.training.experiment import run

    return run(_scenario(verb, policies, **settings), quiet=quiet)


@click.group()
def training() -> None:
    """Find slow ranks and links of PyTorch jobs (watch), and plan pipelines that absorb slow links.

    Planners: gpipe one_f_one_b interleaved_1f1b zb_h1 zb_h2 zbv adaptra adaptra_initial adaptra_as_published.
    """


@training.command()
@click.argument("policy", default="adaptra")
@click.option(
    "--csv", type=click.Path(path_type=Path), help="Write the schedule in the format that PyTorch's runtime loads."
)
@pipeline_options
@output_options
def plan(policy: str, csv: Path | None, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Plan a pipeline with POLICY: the schedule, its predicted iteration time, and a lower bound for any schedule."""
    show(_report("plan", policy, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)
    if csv is not None:
        from takeup.training.experiment import plan_of
        from takeup.training.traces.profiles import save_schedule

        save_schedule(plan_of(_scenario("plan", policy, **settings)).schedule, csv)
        say(f"wrote {csv}")


@training.command()
@click.argument("policies", default="one_f_one_b,zb_h1,adaptra")
@click.option("--schedule", help="Simulate this .csv file instead of POLICIES.")
@click.option(
    "--jitter", "jitter_share", default=0.05, show_default=True, help="Relative standard deviation of operation times."
)
@click.option("--runs", "num_runs", default=100, show_default=True, help="Iterations to simulate.")
@pipeline_options
@output_options
def simulate(policies: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Simulate iterations with varying operation times under POLICIES (comma-separated), with a Gantt chart."""
    show(_report("simulate", policies, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@training.command()
@click.argument("policies", default="gpipe,one_f_one_b,interleaved_1f1b,zb_h1,zb_h2,zbv,adaptra")
@click.option(
    "--delays", "delays", help="Compare at these delays, in ms, comma-separated, on the slow links or else the last."
)
@click.option("--delays-are", default="latency", show_default=True, help="Kind of the delays: latency or service.")
@pipeline_options
@output_options
def compare(
    policies: str, delays: str | None, as_json: bool, out: Path | None, quiet: bool, **settings: object
) -> None:
    """Compare POLICIES (comma-separated) on the same pipeline: iteration time, gap, bubbles, memory."""
    settings["delays_ms"] = delays.split(",") if delays else []
    show(_report("compare", policies, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@training.command()
@click.argument("trace")
@output_options
def whatif(trace: str, as_json: bool, out: Path | None, quiet: bool) -> None:
    """Explain TRACE: what each cause of delay costs, which rank is slow, or where the job hangs.

    TRACE is a Parquet file of operations, or a folder with a file for every rank: traces of PyTorch's profiler, or
    dumps of its Flight Recorder.
    """
    show(_report("whatif", "adaptra", quiet=quiet, trace=trace), as_json=as_json, out=out, charts=CHARTS)


@training.command(context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON for every event; the job prints to stderr.")
@click.option("--out", type=click.Path(path_type=Path), help="Write a report and a Perfetto trace of every event here.")
@click.option("--quiet", is_flag=True, help="Print only events.")
@click.option("--metrics", "metrics_port", type=int, help="Serve Prometheus metrics on this port.")
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    help="Address of the metrics; beyond loopback with a token, TAKEUP_METRICS_TOKEN.",
)
@click.option("--confirm", is_flag=True, help="Pause the job briefly to test ranks and links before acting.")
@click.option("--no-action", is_flag=True, help="Report only; change nothing in the job.")
@click.option(
    "--restart-after",
    "restart_after_s",
    type=float,
    help="Save and restart the job after it has lost this many seconds.",
)
@click.option(
    "--restart-cost",
    "restart_cost_s",
    type=float,
    help="Restart the job when that is likely to pay, at this cost in seconds.",
)
@click.option(
    "--on-unhealthy",
    help="Command for the host of a rank confirmed to compute slowly; {rank}, {host}, {kind}, {factor} are filled in.",
)
@click.option("--act", is_flag=True, help="Run the command of --on-unhealthy instead of printing it.")
@click.option(
    "--shim",
    type=click.Path(path_type=Path),
    help="Record calls of NCCL with this compiled shim instead of the Python hook.",
)
@click.option(
    "--listen", metavar="[HOST:]PORT", help="Also watch ranks of other machines, which report to this address."
)
@click.option(
    "--report-to",
    metavar="HOST:PORT",
    help="Forward the records of this machine's ranks to the watcher at this address.",
)
@click.option(
    "--tls",
    type=click.Path(path_type=Path),
    help="Encrypt that: PEM file with certificate and key of the listener; with --report-to, with its certificate.",
)
def watch(command: tuple[str, ...], as_json: bool, out: Path | None, quiet: bool, **options: Any) -> None:
    """Run COMMAND, such as torchrun and its arguments, and report which rank or link of the job is slow.

    Give COMMAND after --. The job needs no change; with Batches in its script a slow rank gets less work automatically.
    """
    from takeup.training.stragglers.remedy.remediation import WatchSettings
    from takeup.training.stragglers.watch.job import WatchOptions
    from takeup.training.stragglers.watch.job import watch as start

    restarts = (options.pop("restart_after_s"), options.pop("restart_cost_s"))
    settings = WatchSettings(options.pop("confirm"), not options.pop("no_action"), *restarts)
    token = os.environ.get("TAKEUP_WATCH_TOKEN", "")
    asked = WatchOptions(as_json, out, quiet, settings=settings, token=token, **options)
    code = start(command, asked, lambda text: click.echo(text, err=True), click.echo)
    if code:
        click.get_current_context().exit(1)
