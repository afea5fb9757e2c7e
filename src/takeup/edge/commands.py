"""The command-line interface of edge: parse options, call the experiment, print the report."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from takeup.output import output_options, show

Command = TypeVar("Command", bound=Callable[..., Any])
CHARTS = Path("takeup-out")

# Options by their names, the last one shown first.
CELL_OPTIONS: dict[str, dict[str, Any]] = {
    "--seed": {"default": 1, "show_default": True, "help": "Seed of the random cells."},
    "--modulations": {"help": "Rates: shannon, or cqi for the modulations of 3GPP."},
    "--contiguous/--scattered": {"default": None, "help": "Whether a device needs adjacent subcarriers."},
    "--objective": {
        "default": "energy",
        "show_default": True,
        "help": "Objective: energy (saved), count (of served devices) or value.",
    },
    "--edge-hz": {"type": float, "help": "Clock of a core in Hz; default: that of the setting."},
    "--cores num_cores": {"type": int, "help": "Cores of the site; default: those of the setting."},
    "--subcarriers num_subcarriers": {"type": int, "help": "Subcarriers of the cell; default: those of the setting."},
    "--devices num_devices": {"default": 20, "show_default": True, "help": "Devices with a task."},
    "--channel": {"help": "Take the channels from this log of signal-to-noise ratios."},
    "--setting": {
        "default": "radio_tight",
        "show_default": True,
        "help": "Kind of random cell: paper, radio_tight, modern, umi or uma.",
    },
}


def cell_options(command: Command) -> Command:
    """Add the options that describe the cell, its devices and its site."""
    for name, settings in CELL_OPTIONS.items():
        command = click.option(*name.split(), **settings)(command)
    return command


def _report(verb: str, policies: str, *, quiet: bool, **settings: Any) -> Any:
    from takeup.core.scenario import validate
    from takeup.edge.experiment import EdgeScenario, run

    values = {"verb": verb, "policies": policies.split(","), **settings}
    return run(validate(EdgeScenario, values, "options"), quiet=quiet)


@click.group()
def edge() -> None:
    """Plan radio and CPU for edge offloading together, with a proven optimality gap.

    Policies: auto exact greedy.
    Settings: paper radio_tight modern umi uma.
    """


@edge.command("solve")
@click.argument("instance", required=False)
@click.option("--policy", default="auto", show_default=True, help="Policy that makes the plan.")
@click.option("--budget-ms", default=500.0, show_default=True, help="Time budget of auto.")
@cell_options
@output_options
def solve_(policy: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Find the best plan for INSTANCE (.json or .npz, else a random cell), with its gap and prices."""
    show(_report("solve", policy, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@edge.command()
@click.argument("policies")
@click.option("--instances", "num_instances", default=10, show_default=True, help="Random cells to average over.")
@click.option("--budget-ms", default=500.0, show_default=True, help="Time budget of auto.")
@cell_options
@output_options
def compare(policies: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Compare POLICIES (comma-separated) on the same random cells: energy, accepted devices, gaps."""
    show(_report("compare", policies, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@edge.command()
@click.argument("policies", default="greedy")
@click.option("--instance", help="Tasks from this file, which arrive at their release times.")
@click.option("--arrivals", "arrivals_per_s", default=20.0, show_default=True, help="Tasks per second.")
@click.option(
    "--patience-s",
    default=0.0,
    show_default=True,
    help="How long a rejected task waits and retries before it runs locally.",
)
@click.option(
    "--cycles-shape", type=float, help="Shape of the Gamma distribution of the cycles; default: no uncertainty."
)
@click.option("--gain-error-db", default=0.0, show_default=True, help="Standard deviation of the error of gains.")
@click.option("--quantile", default=0.95, show_default=True, help="Quantile of cycles and channels that plans use.")
@cell_options
@output_options
def simulate(policies: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Simulate tasks that arrive over time under POLICIES; accepted tasks are never dropped."""
    if settings["cycles_shape"] is None:
        del settings["cycles_shape"]
    show(_report("simulate", policies, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@edge.command("run")
@click.argument("policy", default="auto")
@click.option("--instance", help="File with the instance; default: a random cell.")
@click.option("--engine", default="cloudlet", show_default=True, help="The engine to run on.")
@click.option(
    "--link", default="auto", show_default=True, help="How uploads are shaped: auto, user-space or namespaces."
)
@click.option("--slowdown", default=1.0, show_default=True, help="Execute everything slower by this factor.")
@click.option("--real-time", is_flag=True, help="Run the engine with real-time priority, where that is allowed.")
@click.option("--dry-run", is_flag=True, help="Print what would be executed; start no process.")
@cell_options
@output_options
def run_(policy: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Play the timetable of a plan of POLICY on this machine, with bytes over TCP and CPU time; report late tasks."""
    show(_report("run", policy, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@edge.command()
@click.argument("policy", default="greedy")
@click.option("--target", "target_share", default=0.9, show_default=True, help="Share of the devices to serve.")
@click.option("--instances", "num_instances", default=10, show_default=True, help="Random cells to average over.")
@cell_options
@output_options
def size(policy: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Find the fewest subcarriers and cores with which POLICY serves the target share of devices."""
    show(_report("size", policy, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@edge.command()
@click.argument("number", type=int, required=False)
@click.option("--save", type=Path, help="Write the cell of this number there (.json or .npz).")
@output_options
def instances(number: int | None, save: Path | None, as_json: bool, out: Path | None, quiet: bool) -> None:
    """List the instance library: 300 cells by number, with best known plans and bounds; or one of them."""
    if number is not None and save is not None:
        from takeup.edge.traces.files import save_instance
        from takeup.edge.traces.library import library_cell

        save_instance(save, library_cell(number))
    show(_report("instances", "auto", quiet=quiet, cell=number), as_json=as_json, out=out, charts=CHARTS)
