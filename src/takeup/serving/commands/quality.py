"""`takeup serving quality MODEL`: compare accelerated images with lossless ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from takeup.output import output_options, say, show
from takeup.serving.model import Request

PROMPTS = ("a cat on a red roof", "a bridge at night, long exposure")


@click.command()
@click.argument("model", default="takeup/tiny-sdxl")
@click.option("--accelerate", default="recorded", show_default=True, help="recorded, eight, bfloat16, late or reused.")
@click.option("--prompt", "prompts", multiple=True, help="What to draw; give it several times. Two of ours if absent.")
@click.option("--images", default=2, show_default=True, help="Seeds for every prompt.")
@click.option("--seed", default=0, show_default=True, help="The first seed.")
@click.option("--steps", "num_steps", default=20, show_default=True, help="Steps of an image.")
@click.option("--size", "size_px", type=int, help="Width and height in pixels; what the model was made for if absent.")
@click.option("--lora", type=click.Path(path_type=Path), help="A LoRA (.safetensors) in every image.")
@click.option("--late-steps", default=5, show_default=True, help="For late: so many steps pass without the LoRA.")
@click.option("--control-change", default=0.05, show_default=True, help="For reused: ControlNets may be off by this.")
@click.option("--least-cosine", default=0.99, show_default=True, help="Exit code 1 if latents are less alike.")
@click.option("--least-ssim", default=0.9, show_default=True, help="Exit code 1 if images are less alike.")
@output_options
@click.pass_context
def quality(ctx: click.Context, /, model: str, as_json: bool, out: Path | None, quiet: bool, **settings: Any) -> None:
    """Generate the same images lossless and accelerated, with the same seeds, and compare them.

    MODEL is a folder in diffusers format, a hub id, or one of takeup/tiny-sd15, -sdxl,
    -sdxl-controlnet, -sd3 and -flux.
    """
    from takeup.serving.quality.makers import makers_of
    from takeup.serving.quality.measures import QualityThresholds, compare_images, quality_report
    from takeup.serving.server.models import open_model

    name = settings["accelerate"]
    makers = makers_of(
        name, lambda: open_model(model), settings["lora"], settings["late_steps"], settings["control_change"]
    )
    requests = _requests(**settings)
    if not quiet:
        say(f"{len(requests)} images, twice each")
    bars = QualityThresholds(settings["least_cosine"], settings["least_ssim"])
    report = quality_report(f"{name} ({model})", compare_images(*makers, requests), bars)
    show(report, as_json=as_json, out=out)
    ctx.exit(0 if report.holds else 1)


def _requests(
    prompts: tuple[str, ...], images: int, seed: int, num_steps: int, size_px: int | None, **_: object
) -> list[Request]:
    return [
        Request(prompt, num_steps=num_steps, seed=seed + number, width_px=size_px, height_px=size_px)
        for prompt in prompts or PROMPTS
        for number in range(images)
    ]
