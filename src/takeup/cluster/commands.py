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
    "--seed": {"default": 1, "show_default": True, "help": "Seed of all random draws."},
    "--strict": {"is_flag": True, "help": "Refuse a trace with a row that cannot be used, instead of skipping it."},
    "--time-unit-s": {"default": 1.0, "show_default": True, "help": "Seconds per unit of time in the trace."},
    "--checkpoint-s": {"default": 3600.0, "show_default": True, "help": "Time between checkpoints of traced jobs."},
    "--guarantee-h": {
        "default": 1.0,
        "show_default": True,
        "help": "Hours that spot jobs of a trace ask to be guaranteed.",
    },
    "--spot-organisation spot_organisations": {
        "multiple": True,
        "help": "Jobs of this organisation are spot, where the trace does not say. May be repeated.",
    },
    "--spot-share": {"default": 0.2, "show_default": True, "help": "Share of spot jobs, where the trace does not say."},
    "--scale": {"default": 1.0, "show_default": True, "help": "Multiplies the nodes and jobs of the workload."},
    "--days num_days": {"type": int, "help": "Only the last N days of the workload."},
    "--pool pools": {"multiple": True, "help": "Only this pool. May be repeated."},
    "--nodes": {"help": "The list of nodes of the trace; by default the usual file in the same folder."},
    "--trace": {"help": "A trace file instead of a workload; its format is recognised."},
    "--workload": {"help": "A generated fleet, such as small or a100_2296; small if absent."},
}
QUOTA_OPTIONS: dict[str, dict[str, Any]] = {
    "--feedback/--no-feedback": {"default": True, "help": "Whether broken guarantees correct the quota."},
    "--model": {"default": "anchored", "show_default": True, "help": "The forecast of demand behind the quota."},
    "--wait-price": {
        "type": float,
        "help": "Spot GPU-hours worth an hour less of waiting of a high-priority GPU; 10 if absent, 0 is FIFO.",
    },
    "--probability": {"default": 0.9, "show_default": True, "help": "Share of guarantees to keep."},
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
    """Spot jobs on a GPU fleet, with a forecast of the capacity that can be guaranteed (GFS).

    Policies: fifo fifo_strict easy srtf high_first kube kueue kueue_cohort kueue_strict slurm kai kube+quota
    slurm+quota gfs gfs_notice
    gfs_promised gfs_published gfs_simple_place gfs_simple_preempt gfs_published_simple_place
    gfs_published_simple_preempt; yarn_cs chronus lyra fgd as the GFS paper evaluated them, and
    yarn_cs_published chronus_published lyra_published fgd_published as their own papers say.
    Engines: slurm and kubernetes for run.
    Workloads: small a100_2296 a100_2296_low a100_2296_high v2026 v2026_served.
    """


@cluster.command()
@click.argument("policy", default="gfs")
@with_options(TRACE_OPTIONS, QUOTA_OPTIONS, WINDOW_OPTIONS)
@output_options
def simulate(policy: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Replay a trace under one POLICY: evictions, waiting times and GPU use, hour by hour."""
    show(_report("simulate", policy, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@cluster.command()
@click.argument("policies", default="fifo,yarn_cs,chronus,lyra,fgd,gfs")
@with_options(TRACE_OPTIONS, QUOTA_OPTIONS, WINDOW_OPTIONS)
@output_options
def compare(policies: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Compare POLICIES, separated by commas, on the same trace: evictions, JQT, JCT, allocation, useful GPU time."""
    show(_report("compare", policies, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@cluster.command()
@click.argument("policy", default="gfs")
@click.option("--gang", "gang_nodes", default=0, show_default=True, help="Whole nodes needed; 0: anywhere.")
@click.option("--gpus", "num_gpus", default=8, show_default=True, help="GPUs needed in total.")
@click.option("--at-day", type=float, help="Day of the trace to ask at; by default its end.")
@with_options(TRACE_OPTIONS, QUOTA_OPTIONS)
@output_options
def offer(policy: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """What can be guaranteed to a job that starts now: for how many hours, with which probability, and why."""
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
    """Gain of POLICY over another one: USD a month with a confidence interval, net of lost work."""
    show(_report("benefit", policy, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@cluster.command()
@click.option(
    "--sacct", "records", required=True, help="sacct -P or --json, kubectl get pods -o json, or CSV; - reads stdin."
)
@click.option("--nodes", help="80x8, a100=80x8,h100=10x8, or a file of 'sinfo --json'; by default what ran at once.")
@click.option("--map", "column_map", multiple=True, help="NAME=COLUMN, such as spot=best_effort=1,submit=submit_time.")
@click.option("--price", "prices", multiple=True, help="USD for a GPU-hour: MODEL=USD or a number. May be repeated.")
@click.option("--own", "own_policy", help="The site's own policy; slurm for sacct, kube for pods, fifo for others.")
@click.option("--saves-s", type=float, help="Jobs save their work when told, this many seconds before they must leave.")
@click.option("--frontier", is_flag=True, help="Also at other prices of waiting, from FIFO to evictions at once.")
@click.option("--spot-share", "drawn_share", type=float, help="Draw this share of jobs as spot; never without asking.")
@with_options({name: TRACE_OPTIONS[name] for name in ("--seed", "--time-unit-s", "--checkpoint-s", "--guarantee-h")})
@with_options({name: TRACE_OPTIONS[name] for name in ("--spot-organisation spot_organisations",)}, QUOTA_OPTIONS)
@output_options
def whatif(as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Your own job records under your policy, stock ones and gfs: GPU time, waits, and USD a month with an interval."""
    show(_report("whatif", "gfs", quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@cluster.command()
@click.argument("models", default="anchored,persistence,last_week_peak")
@click.option(
    "--demand", help="Table of hourly demand: hours in the first column, GPUs of one pool in each other column."
)
@click.option("--hours", "num_hours", default=4, show_default=True, help="Hours to forecast.")
@click.option("--probability", default=0.9, show_default=True, help="Level of the bound.")
@with_options(TRACE_OPTIONS, WINDOW_OPTIONS)
@output_options
def forecast(models: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Forecast the highest demand of the next hours with MODELS, separated by commas, and backtest them.

    Models: anchored persistence last_week_peak.
    """
    settings["models"] = models.split(",")
    show(_report("forecast", "gfs", quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


ROUND_OPTIONS: dict[str, dict[str, Any]] = {
    "--metrics": {"help": "File for metrics in the text format of Prometheus."},
    "--listen": {
        "help": "Serve /metrics, /healthz and /readyz at [HOST:]PORT; beyond loopback with TAKEUP_METRICS_TOKEN."
    },
    "--dry-run": {"is_flag": True, "help": "Shadow mode: report decisions with their reasons, change nothing."},
}


@cluster.command("run")
@click.argument("policy", default="gfs")
@click.option("--engine", help="The cluster to control: slurm or kubernetes.")
@click.option("--for-s", type=float, help="Seconds to run; until stopped if absent.")
@click.option("--period-s", type=float, help="Seconds between two rounds, 1 if absent.")
@click.option("--journal", help="File for the write-ahead journal, from which a restarted controller continues.")
@click.option("--conf", "--kubeconfig", "conf", help="The slurm.conf or kubeconfig to use instead of the default one.")
@click.option("--against", default="fifo", show_default=True, help="The policy to compare each past day with.")
@with_options(QUOTA_OPTIONS, ROUND_OPTIONS)
@output_options
def run_(policy: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Run POLICY as the controller of a real Slurm or Kubernetes cluster.

    Every decision is printed with its reason. Slurm needs '--dry-run' or '--journal'.
    """
    show(_report("run", policy, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)
