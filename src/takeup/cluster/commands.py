"""The verbs of cluster on the command line: parse, call, show."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from takeup.output import output_options, say, show

Command = TypeVar("Command", bound=Callable[..., Any])
CHARTS = Path("takeup-out")

# Options by their names, the last one shown first.
TRACE_OPTIONS: dict[str, dict[str, Any]] = {
    "--seed": {"default": 1, "show_default": True, "help": "Seed of what is drawn."},
    "--strict": {"is_flag": True, "help": "Refuse a trace with a row that cannot be used, instead of skipping it."},
    "--time-unit-s": {"default": 1.0, "show_default": True, "help": "What times in the trace count, in seconds."},
    "--checkpoint-s": {"default": 3600.0, "show_default": True, "help": "Time between checkpoints of traced jobs."},
    "--guarantee-h": {"default": 1.0, "show_default": True, "help": "The promise that traced spot jobs ask for."},
    "--spot-organisation spot_organisations": {
        "multiple": True,
        "help": "Jobs of this organisation are spot, where the trace does not say. May be repeated.",
    },
    "--spot-share": {"default": 0.2, "show_default": True, "help": "Share of spot jobs, where the trace does not say."},
    "--scale": {"default": 1.0, "show_default": True, "help": "Times the nodes and jobs of the workload."},
    "--days num_days": {"type": int, "help": "The last days of the workload; all if absent."},
    "--pool pools": {"multiple": True, "help": "Only this pool. May be repeated."},
    "--nodes": {"help": "The list of nodes of the trace; the usual file beside it if absent."},
    "--trace": {"help": "A trace file instead of a workload; its format is recognised."},
    "--workload": {"help": "A generated fleet, such as small or a100_2296; small if absent."},
}
QUOTA_OPTIONS: dict[str, dict[str, Any]] = {
    "--feedback/--no-feedback": {"default": True, "help": "Whether broken promises correct the quota."},
    "--model": {"default": "anchored", "show_default": True, "help": "The forecast of demand behind the quota."},
    "--probability": {"default": 0.9, "show_default": True, "help": "Share of promises to keep."},
}
WINDOW_OPTIONS: dict[str, dict[str, Any]] = {
    "--to-day": {"type": float, "help": "The window ends here, and later jobs are left out."},
    "--from-day": {"type": float, "help": "The window begins here; on the day of the first spot job if absent."},
}


def with_options(*groups: dict[str, dict[str, Any]]) -> Callable[[Command], Command]:
    """Options that several verbs share."""

    def add(command: Command) -> Command:
        for group in groups:
            for name, settings in group.items():
                command = click.option(*name.split(), **settings)(command)
        return command

    return add


def _report(verb: str, policies: str, *, quiet: bool, **settings: Any) -> Any:
    from takeup.cluster.experiment import ClusterScenario, run
    from takeup.core.scenario import validate

    values = {"verb": verb, "policies": policies.split(","), **settings}
    return run(validate(ClusterScenario, values, "options"), quiet=quiet, tell=say)


@click.group()
def cluster() -> None:
    """GPU fleets: sell what high-priority jobs leave idle, with a promise (GFS).

    Policies: fifo fifo_strict yarn_cs chronus lyra fgd kube kueue slurm kai gfs gfs_notice gfs_promised gfs_published
    gfs_simple_place gfs_simple_preempt gfs_published_simple_place gfs_published_simple_preempt gfs_artifact, and
    yarn_cs, chronus, lyra and fgd as their papers say: yarn_cs_published, chronus_published, lyra_published,
    fgd_published.
    Engines: embedded slurm kubernetes.
    Workloads: small a100_2296 a100_2296_low a100_2296_high v2026 v2026_served.
    """


@cluster.command()
@click.argument("policy", default="gfs")
@with_options(TRACE_OPTIONS, QUOTA_OPTIONS, WINDOW_OPTIONS)
@output_options
def simulate(policy: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """One POLICY on a whole trace in virtual time: evictions, waits, use of GPUs, hour by hour."""
    show(_report("simulate", policy, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@cluster.command()
@click.argument("policies", default="fifo,yarn_cs,chronus,lyra,fgd,gfs")
@with_options(TRACE_OPTIONS, QUOTA_OPTIONS, WINDOW_OPTIONS)
@output_options
def compare(policies: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """POLICIES, separated by commas, on the same trace: three eviction rates, JQT, JCT, allocation, useful GPU time."""
    show(_report("compare", policies, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@cluster.command()
@click.argument("policy", default="gfs")
@click.option("--gang", "gang_nodes", default=0, show_default=True, help="Whole nodes that are needed; 0: anywhere.")
@click.option("--gpus", "num_gpus", default=8, show_default=True, help="GPUs that are needed, all together.")
@click.option("--at-day", type=float, help="The moment of the trace to ask at; its end if absent.")
@with_options(TRACE_OPTIONS, QUOTA_OPTIONS)
@output_options
def offer(policy: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """The best promises for a job that starts now: how many hours, kept with which probability, and why."""
    show(_report("offer", policy, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@cluster.command()
@click.argument("policy", default="gfs")
@click.option("--against", default="fifo", show_default=True, help="The policy to compare with, on the same jobs.")
@click.option(
    "--price", "prices", multiple=True, help="USD for a GPU-hour: POOL=USD, or a number for all pools. May be repeated."
)
@click.option("--high-price", "high_prices", multiple=True, help="The same for high-priority jobs, where it differs.")
@with_options(TRACE_OPTIONS, QUOTA_OPTIONS, WINDOW_OPTIONS)
@output_options
def benefit(policy: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """What POLICY earns over another one: USD a month with a confidence interval, net of lost work."""
    show(_report("benefit", policy, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@cluster.command()
@click.argument("models", default="anchored,persistence,last_week_peak")
@click.option("--demand", help="A table with hours in its first column and GPUs of one pool in each other one.")
@click.option("--hours", "num_hours", default=4, show_default=True, help="How many hours to look ahead.")
@click.option("--probability", default=0.9, show_default=True, help="Of the bound.")
@with_options(TRACE_OPTIONS, WINDOW_OPTIONS)
@output_options
def forecast(models: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """What MODELS, separated by commas, say about the highest demand of the next hours, and how well they did.

    Models: anchored persistence last_week_peak orglinear orglinear_normalised.
    """
    settings["models"] = models.split(",")
    show(_report("forecast", "gfs", quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@cluster.command("run")
@click.argument("policy", default="gfs")
@click.option("--engine", default="embedded", show_default=True, help="The engine to run on.")
@click.option("--dry-run", is_flag=True, help="Shadow mode: look, say what would be decided and why, change nothing.")
@click.option("--for-s", type=float, help="How long; until it is stopped if absent, the embedded engine for a day.")
@click.option("--period-s", type=float, help="Time between two looks; 1 if absent, 300 on the embedded engine.")
@click.option("--journal", help="Where a controller writes what it does, so that it can be killed at any moment.")
@click.option("--metrics", help="A file to keep counters and gauges in, as Prometheus reads them.")
@click.option("--conf", "--kubeconfig", "conf", help="The slurm.conf or kubeconfig to use instead of the usual one.")
@click.option("--against", default="fifo", show_default=True, help="The policy that days are also replayed under.")
@with_options(TRACE_OPTIONS, QUOTA_OPTIONS)
@output_options
def run_(policy: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """POLICY at work: on a real Slurm or Kubernetes, or on jobs played inside this process.

    Every decision is told with its reason. Slurm needs '--dry-run' or '--journal'.
    """
    show(_report("run", policy, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)
