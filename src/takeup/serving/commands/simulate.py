"""`takeup serving simulate DESIGN`: simulate one serving design on a queue, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from takeup.errors import BadInput
from takeup.output import output_options, show

Command = TypeVar("Command", bound=Callable[..., Any])
CHARTS = Path("takeup-out")

# Options by their names, the last one shown first.
QUEUE_OPTIONS: dict[str, dict[str, Any]] = {
    "--seed": {"default": 1, "show_default": True, "help": "Seed of what is drawn."},
    "--in-time": {"is_flag": True, "help": "Refuse requests that are not expected to make their deadline."},
    "--deadline-s": {"type": float, "help": "Seconds after which nobody waits for an image any more."},
    "--max-waiting": {"type": int, "help": "Refuse requests when so many wait at an instance; no limit if absent."},
    "--max-running": {"type": int, "help": "Requests in one step loop or batch; what the design has if absent."},
    "--max-rows": {"default": 16, "show_default": True, "help": "Rows of a call at most."},
    "--patience": {"default": 64, "show_default": True, "help": "How often a waiting request may be overtaken."},
    "--order": {"default": "in_order", "show_default": True, "help": "in_order, fewest_loads or shared_loads."},
    "--route": {"default": "affinity", "show_default": True, "help": "Where requests go: affinity or least_busy."},
    "--eviction": {"default": "lerc", "show_default": True, "help": "What leaves: lru, lfu, gdsf, lerc or next."},
    "--host-load-s": {"default": 0.01, "show_default": True, "help": "Seconds of a LoRA from host to device."},
    "--host-cache": {"default": 0, "show_default": True, "help": "LoRAs that the host of an instance keeps."},
    "--cache": {"default": 10, "show_default": True, "help": "LoRAs that the device of an instance keeps."},
    "--costs": {"help": "A .toml file with measured seconds of steps by rows; those of one H800 if absent."},
    "--loads": {"default": "bandwidth", "show_default": True, "help": "Seconds of loads: bandwidth or gentd26."},
    "--gpus num_gpus": {"default": 8, "show_default": True, "help": "GPUs of all instances together."},
    "--steps num_steps": {"default": 50, "show_default": True, "help": "Steps of an image that is drawn."},
    "--requests num_requests": {"default": 2000, "show_default": True, "help": "Requests to serve."},
    "--loras": {"help": "data_trace_processed of GenTD26, as CSV or in its archive."},
    "--trace": {"help": "lora_request_trace.csv of GenTD26."},
    "--workload": {"default": "retail", "show_default": True, "help": "retail, poisson or gentd26."},
}


def queue_options(command: Command) -> Command:
    """Decorator that adds the options for requests, instances and policies."""
    for name, settings in QUEUE_OPTIONS.items():
        command = click.option(*name.split(), **settings)(command)
    return command


def report_of(verb: str, designs: str, rates: str, *, quiet: bool, **settings: Any) -> Any:
    """Validate the options and run the simulation."""
    from takeup.core.scenario import validate
    from takeup.serving.experiment import ServingScenario, run

    values = {"verb": verb, "designs": designs.split(","), "rates_per_s": rates.split(","), **settings}
    return run(validate(ServingScenario, values, "options"), quiet=quiet)


@click.command()
@click.argument("design", default="takeup")
@click.option("--rate", default="1.0", show_default=True, help="Requests a second.")
@queue_options
@output_options
def simulate(design: str, rate: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Simulate DESIGN on a queue in virtual time: request latency and GPU utilisation.

    Requests follow two online-retail services (retail), have no add-ons (poisson), or are read from a public trace.
    """
    for value, what in ((design, "designs"), (rate, "rates")):
        if "," in value:
            raise BadInput(f"{value!r} are several {what}; `simulate` takes one, `compare` takes a list")
    show(report_of("simulate", design, rate, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)
