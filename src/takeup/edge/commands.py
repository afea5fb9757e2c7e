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
    "--seed": {"default": 1, "show_default": True, "help": "Seed of what is drawn."},
    "--modulations": {"help": "Rates: shannon, or cqi for the modulations of 3GPP."},
    "--contiguous/--scattered": {"default": None, "help": "Whether the subcarriers of a device must be neighbours."},
    "--objective": {"default": "energy", "show_default": True, "help": "What to make large: energy, count or value."},
    "--edge-hz": {"type": float, "help": "Speed of a core; the setting's if absent."},
    "--cores num_cores": {"type": int, "help": "Cores of the site; the setting's if absent."},
    "--subcarriers num_subcarriers": {"type": int, "help": "Subcarriers of the cell; the setting's if absent."},
    "--devices num_devices": {"default": 20, "show_default": True, "help": "Devices with a task."},
    "--channel": {"help": "A log of signal-to-noise ratios to take the channels from."},
    "--setting": {"default": "radio_tight", "show_default": True, "help": "Which cell to draw: see the README."},
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
    """Decide which devices offload, over which subcarriers, and when the site runs each task.

    Policies: auto exact cg joint_plus joint joint_append radio_first cpu_first gma car_p jtora local min_group.
    Settings: paper radio_tight modern.
    """


@edge.command("solve")
@click.argument("instance", required=False)
@click.option("--policy", default="auto", show_default=True, help="How to solve it.")
@click.option("--budget-ms", default=500.0, show_default=True, help="Time that auto may take.")
@cell_options
@output_options
def solve_(policy: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Find the best plan for INSTANCE (.json or .npz, else a random cell), with its gap and prices."""
    show(_report("solve", policy, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@edge.command()
@click.argument("policies")
@click.option("--instances", "num_instances", default=10, show_default=True, help="Random cells to average over.")
@click.option("--budget-ms", default=500.0, show_default=True, help="Time that auto may take.")
@cell_options
@output_options
def compare(policies: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Compare POLICIES (comma-separated) on the same random cells: energy, accepted devices, gaps."""
    show(_report("compare", policies, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@edge.command()
@click.argument("policies", default="joint_plus")
@click.option("--instance", help="Tasks from this file, arriving at their releases.")
@click.option("--arrivals", "arrivals_per_s", default=20.0, show_default=True, help="Tasks per second.")
@click.option("--patience-s", default=0.0, show_default=True, help="How long a task asks again before it runs locally.")
@click.option("--cycles-shape", type=float, help="Shape of the Gamma law of the cycles; certain if absent.")
@click.option("--gain-error-db", default=0.0, show_default=True, help="Standard deviation of the error of gains.")
@click.option("--quantile", default=0.95, show_default=True, help="Of cycles and channels, for which to plan.")
@cell_options
@output_options
def simulate(policies: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Simulate tasks that arrive over time under POLICIES; accepted tasks are never dropped."""
    if settings["cycles_shape"] is None:
        del settings["cycles_shape"]
    show(_report("simulate", policies, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@edge.command("run")
@click.argument("policy", default="auto")
@click.option("--instance", help="The instance to play; a random cell if absent.")
@click.option("--engine", default="cloudlet", show_default=True, help="The engine to run on.")
@click.option(
    "--link", default="auto", show_default=True, help="How uploads are shaped: auto, user-space or namespaces."
)
@click.option("--slowdown", default=1.0, show_default=True, help="Play everything slower by this factor.")
@click.option("--real-time", is_flag=True, help="Put the engine before other processes, where that is allowed.")
@click.option("--dry-run", is_flag=True, help="Say what would be played, and open nothing.")
@cell_options
@output_options
def run_(policy: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Execute the plan of POLICY with real bytes over TCP and real CPU work; report missed deadlines."""
    show(_report("run", policy, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


@edge.command()
@click.argument("policy", default="joint")
@click.option("--target", "target_share", default=0.9, show_default=True, help="Share of the devices to serve.")
@click.option("--instances", "num_instances", default=10, show_default=True, help="Random cells to average over.")
@cell_options
@output_options
def size(policy: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Find the fewest subcarriers and cores with which POLICY serves enough devices."""
    show(_report("size", policy, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)
