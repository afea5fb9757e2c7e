"""`takeup serving edit IMAGE MASK PROMPT`: change the masked part of an image, reuse cached activations of the rest."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from takeup.output import say
from takeup.serving.model import Request

if TYPE_CHECKING:
    from takeup.serving.engines.diffusers.masked.editing import EditReport


@click.command()
@click.argument("image")
@click.argument("mask")
@click.argument("prompt")
@click.option("--model", default="takeup/tiny-sdxl", show_default=True, help="A folder, a hub id, or takeup/tiny-...")
@click.option("--out", default="edited.png", show_default=True, type=click.Path(path_type=Path), help="The new image.")
@click.option("--steps", "num_steps", default=20, show_default=True, help="Steps of an image.")
@click.option("--guidance", default=5.0, show_default=True, help="How much the prompt counts.")
@click.option("--seed", default=0, show_default=True, help="Of the noise inside the mask.")
@click.option("--strength", default=1.0, show_default=True, help="Share of the steps that are made, above 0.")
@click.option("--templates", type=click.Path(path_type=Path), help="A folder that keeps templates for the next edit.")
@click.option("--max-error", type=float, help="Steps are made whole where a template is more stale than this.")
@click.option("--budget", default=0.0, show_default=True, help="Relative error that packing of templates may cause.")
@click.option("--json", "as_json", is_flag=True, help="Print what was done as JSON.")
def edit(image: str, mask: str, prompt: str, model: str, out: Path, as_json: bool, **settings: Any) -> None:
    """Change IMAGE where MASK is white, following PROMPT. Every other pixel stays bit-identical.

    The first edit of an image computes everything; with --templates, later edits compute only the masked part, and
    IMAGE may be the template id that an earlier edit printed.
    """
    from takeup.serving.engines.diffusers.masked.asked import EditRequest
    from takeup.serving.engines.diffusers.masked.session import edit_once, open_original
    from takeup.serving.server.models import open_model

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
    stale = "" if report.stale_error is None else f", the rest is stale by {report.stale_error:.2g}"
    again = "" if template is None else f"; its template is {template}"
    shares = f"{report.computed_share:.0%} of the tokens were computed, {report.mask_share:.0%} are masked"
    return f"{out}: {shares}{stale}{again}"
