"""Subcommands of `takeup serving`; engines and simulators are imported only when one is invoked."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from takeup.errors import BadInput
from takeup.output import output_options, say, show
from takeup.serving.model import Request

if TYPE_CHECKING:
    from takeup.serving.editing.contract import EditReport


# `takeup serving simulate DESIGN`: simulate one serving design on a queue, in virtual time ----------------------------

Command = TypeVar("Command", bound=Callable[..., Any])
CHARTS = Path("takeup-out")

# Options by their names, the last one shown first.
QUEUE_OPTIONS: dict[str, dict[str, Any]] = {
    "--seed": {"default": 1, "show_default": True, "help": "Seed of the random requests."},
    "--in-time": {"is_flag": True, "help": "Refuse requests that are expected to miss their deadline."},
    "--deadline-s": {"type": float, "help": "Deadline of every request, in seconds; none if absent."},
    "--max-waiting": {
        "type": int,
        "help": "Requests that may wait at an instance; others are refused. No limit if absent.",
    },
    "--max-running": {"type": int, "help": "Requests in one step loop or batch; default of the design if absent."},
    "--max-rows": {"default": 16, "show_default": True, "help": "Maximum rows of a network call."},
    "--patience": {"default": 64, "show_default": True, "help": "Maximum times that a waiting request is overtaken."},
    "--order": {
        "default": "in_order",
        "show_default": True,
        "help": "Queue order: in_order, fewest_loads or shared_loads.",
    },
    "--route": {"default": "affinity", "show_default": True, "help": "Routing: affinity or least_busy."},
    "--eviction": {
        "default": "lerc",
        "show_default": True,
        "help": "Eviction policy: lru, lfu, gdsf, lerc or furthest_next_use.",
    },
    "--cache": {"default": 10, "show_default": True, "help": "LoRAs cached in the memory of an instance."},
    "--costs": {"help": "A .toml file with measured seconds per step by rows; those of one H800 if absent."},
    "--loads": {"default": "bandwidth", "show_default": True, "help": "Load times of LoRAs: bandwidth or gentd26."},
    "--gpus num_gpus": {"default": 8, "show_default": True, "help": "GPUs of all instances in total."},
    "--steps num_steps": {"default": 50, "show_default": True, "help": "Steps of a generated request."},
    "--requests num_requests": {"default": 2000, "show_default": True, "help": "Number of requests."},
    "--loras": {"help": "data_trace_processed of GenTD26: the CSV file or the archive."},
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


@click.command(short_help="Simulate one serving design on a queue, in virtual time.")
@click.argument("design", default="takeup")
@click.option("--rate", default="1.0", show_default=True, help="Requests per second.")
@queue_options
@output_options
def simulate(design: str, rate: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Simulate DESIGN on a queue in virtual time: request latency and GPU utilisation.

    Requests follow two online-retail services (retail), have no add-ons (poisson), or are read from a public trace.
    """
    for value, what in ((design, "designs"), (rate, "rates")):
        if "," in value:
            raise BadInput(f"{value!r} has several {what}; `simulate` takes one, `compare` takes a list")
    show(report_of("simulate", design, rate, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


# `takeup serving compare DESIGNS`: compare designs on the same requests, at several arrival rates ---------------------


@click.command(short_help="Compare designs on the same requests, at several rates.")
@click.argument("designs", default="diffusers,static,nirvana,swiftdiffusion,takeup")
@click.option("--rates", default="0.25,0.5,1.0", show_default=True, help="Requests per second, separated by commas.")
@queue_options
@output_options
def compare(designs: str, rates: str, as_json: bool, out: Path | None, quiet: bool, **settings: object) -> None:
    """Compare DESIGNS (comma-separated) on the same requests and number of GPUs, at several arrival rates."""
    show(report_of("compare", designs, rates, quiet=quiet, **settings), as_json=as_json, out=out, charts=CHARTS)


# `takeup serving edit IMAGE MASK PROMPT`: change the masked part of an image, reuse cached activations of the rest


@click.command(short_help="Change the masked part of an image; the rest stays bit-identical.")
@click.argument("image")
@click.argument("mask")
@click.argument("prompt")
@click.option("--model", default="takeup/tiny-sdxl", show_default=True, help="A folder, a hub id, or takeup/tiny-...")
@click.option("--out", default="edited.png", show_default=True, type=click.Path(path_type=Path), help="The new image.")
@click.option("--steps", "num_steps", default=20, show_default=True, help="Denoising steps.")
@click.option("--guidance", default=5.0, show_default=True, help="Guidance scale.")
@click.option("--seed", default=0, show_default=True, help="Seed of the noise inside the mask.")
@click.option("--strength", default=1.0, show_default=True, help="Share of the steps that are run, above 0.")
@click.option("--templates", type=click.Path(path_type=Path), help="A folder that stores templates for later edits.")
@click.option("--max-error", type=float, help="Compute all tokens in steps where the template is staler than this.")
@click.option("--budget", default=0.0, show_default=True, help="Maximum relative error of compressed templates.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def edit(image: str, mask: str, prompt: str, model: str, out: Path, as_json: bool, **settings: Any) -> None:
    """Change IMAGE where MASK is white, following PROMPT. Every other pixel stays bit-identical.

    The first edit of an image computes everything; with --templates, later edits compute only the masked part, and
    IMAGE may be the template id that an earlier edit printed.
    """
    from takeup.serving.editing.contract import EditRequest
    from takeup.serving.editing.masked.editor import edit_once, open_original
    from takeup.serving.server.backends.local import open_model

    picture, template = open_original(image, settings["templates"])
    white, _ = open_original(mask)
    asked = EditRequest(picture, white, settings.pop("strength"), settings.pop("max_error"))
    request = Request(prompt, **{name: settings.pop(name) for name in ("num_steps", "guidance", "seed")})
    edited, report = edit_once(open_model(model), request, asked, **settings)
    edited.save(out)
    if as_json:
        click.echo(json.dumps({"out": str(out), "template": template, **asdict(report)}))
    else:
        say(_sentence(out, template, report))


def _sentence(out: Path, template: str | None, report: EditReport) -> str:
    stale = "" if report.error is None else f", an error of at most {report.error:.2g} of full brightness"
    again = "" if template is None else f"; its template is {template}"
    shares = f"{report.computed_share:.0%} of the tokens were computed, {report.mask_share:.0%} are masked"
    return f"{out}: {shares}{stale}{again}"


# `takeup serving quality MODEL`: compare accelerated images with exact ones -------------------------------------------

SCENES = {"takeup/scenes": "sdxl", "takeup/scenes-flux": "flux"}
PROMPTS = ("a cat on a red roof", "a bridge at night, long exposure")


@click.command(short_help="Compare accelerated images with exact ones.")
@click.argument("model", default="takeup/scenes")
@click.option("--only", multiple=True, help="Accelerations whose name contains this; repeat. All if absent.")
@click.option("--pictures", default=8, show_default=True, help="Pictures in each row: seeds, in turn for each prompt.")
@click.option("--prompt", "prompts", multiple=True, help="Prompt; repeatable. Two built-in ones if absent.")
@click.option("--seed", default=0, show_default=True, help="The first seed.")
@click.option("--steps", "num_steps", default=20, show_default=True, help="Denoising steps.")
@click.option("--size", "size_px", type=int, help="Width and height in pixels; default of the model if absent.")
@click.option("--lora", type=click.Path(path_type=Path), help="A LoRA (.safetensors) for all images.")
@click.option("--late-steps", default=5, show_default=True, help="Steps without the LoRA, where it is late.")
@click.option("--control-change", default=0.05, show_default=True, help="Maximum predicted change of reused residuals.")
@click.option("--least-ssim", default=0.9, show_default=True, help="Exit code 1 if the SSIM of the images is lower.")
@output_options
@click.pass_context
def quality(
    ctx: click.Context,
    /,
    model: str,
    as_json: bool,
    out: Path | None,
    quiet: bool,
    only: Sequence[str],
    **settings: Any,
) -> None:
    """Make the same images exactly and accelerated, with the same seeds, and compare them.

    Without MODEL, all accelerations are judged on the trained model takeup/scenes (or takeup/scenes-flux), in minutes.
    Else MODEL is a folder in diffusers format, a hub id, or one of takeup/tiny-sd15, -sdxl, -sdxl-controlnet, -sd3 and
    -flux; its accelerations are recorded, eight, bfloat16, late (with --lora) and reused (with ControlNets).
    """
    from takeup.scenes.quality import ModelPainter, Painter, model_report, report
    from takeup.serving.server.backends.local import open_model

    if model in SCENES:
        painter = Painter(SCENES[model], settings["pictures"], settings["num_steps"], seed=settings["seed"])
        show(report(painter, only), as_json=as_json, out=out)
        return
    others = {name: settings[name] for name in ("lora", "late_steps", "control_change")}
    made = model_report(
        ModelPainter(lambda: open_model(model), _requests(**settings), **others), model, only, settings["least_ssim"]
    )
    show(made, as_json=as_json, out=out)
    ctx.exit(0 if made.holds else 1)


def _requests(
    prompts: tuple[str, ...], pictures: int, seed: int, num_steps: int, size_px: int | None, **_: object
) -> list[Request]:
    told = prompts or PROMPTS
    return [
        Request(told[n % len(told)], num_steps=num_steps, seed=seed + n, width_px=size_px, height_px=size_px)
        for n in range(pictures)
    ]


# The group `takeup serving` -------------------------------------------------------------------------------------------


class _InOrder(click.Group):
    """Click group that lists its subcommands in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


@click.group(cls=_InOrder)
def serving() -> None:
    """Serve diffusion models where each request brings its own LoRAs and ControlNets.

    Designs: diffusers static nirvana swiftdiffusion takeup. `takeup serve` starts a real server.
    """


for verb in (simulate, compare, edit, quality):
    serving.add_command(verb)
