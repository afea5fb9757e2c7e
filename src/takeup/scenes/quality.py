"""What accelerations cost on models that make pictures: the judge's scores beside those of the exact run.

Every row of the table makes the same tasks twice, exactly and accelerated, from the same seeds. The difference of the
scores is paired by picture, with a 95 % bootstrap interval.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from takeup.core.report import Column, Report, Table
from takeup.errors import BadInput
from takeup.scenes import models, tasks, world
from takeup.scenes.judge import interval, judge, judge_edit, psnr, ssim, style_share
from takeup.scenes.render import STYLES, edge_map, render

SEED, MAX_ROWS = 11, 32
COLUMNS = (
    Column("acceleration"),
    Column("pictures", "", 0),
    Column("score, exact", "%", 1),
    Column("score", "%", 1),
    Column("difference", "points", 1),
    Column("from", "points", 1),
    Column("to", "points", 1),
    Column("PSNR to exact", "dB", 1),
    Column("SSIM to exact", "", 3),
)


@dataclass(frozen=True)
class Painter:
    """A trained form, how many tasks of each kind, and how many steps."""

    family: str
    number: int = 16
    steps: int = 20
    device: str = "cpu"
    seed: int = SEED
    folder: Path = models.WEIGHTS

    def pipeline(self) -> Any:
        """A new pipeline on the device."""
        return models.load(self.family, self.folder).to(self.device)

    def requests(self, prompts: Sequence[str], **more: Any) -> list[Any]:
        """A request for each prompt, with seeds of its own."""
        from takeup.serving.model import Request

        more = {
            "num_steps": self.steps,
            "guidance": models.GUIDANCE[self.family],
            "height_px": 128,
            "width_px": 128,
        } | more
        return [Request(prompt, seed=self.seed + n, **more) for n, prompt in enumerate(prompts)]

    def scenes(self) -> Any:
        """Held-out scenes to make pictures of."""
        return world.sample(self.seed, self.number, held_out=True).centred()

    def painted(self, pipeline: Any, requests: Sequence[Any], on_step: Any = None, **engine: Any) -> Any:
        """The pictures, [n, 3, 128, 128], of the step engine."""
        from takeup.serving.diffusion.engine.steps import StepEngine

        made = StepEngine(pipeline, **engine)
        tickets = [made.submit(request, on_step) for request in requests]
        made.run()
        return _pictures(made.image(ticket) for ticket in tickets)


def _pictures(images: Any) -> Any:
    return np.concatenate([image.float().clamp(0, 1).cpu().numpy() for image in images])


@dataclass(frozen=True)
class Pair:
    """Scores and pictures of the same tasks both ways."""

    exact_scores: Any
    scores: Any
    exact: Any
    made: Any

    def row(self, name: str) -> tuple[Any, ...]:
        """A row of `COLUMNS`."""
        gaps = [100 * value for value in interval(np.asarray(self.scores) - self.exact_scores)]
        means = [100 * float(np.mean(scores)) for scores in (self.exact_scores, self.scores)]
        nearness = float(np.mean(psnr(self.made, self.exact))), float(np.mean(ssim(self.made, self.exact)))
        return name, len(self.made), *means, *gaps, *nearness


# Edits ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EditSet:
    """Pictures with masks, and captions of what they should become."""

    before: Any
    wanted: Any
    masks: Any

    @property
    def images(self) -> Any:
        """Bytes, [n, side, side, 3]."""
        return (self.before.transpose(0, 2, 3, 1) * 255).round().astype(np.uint8)


def edit_set(painter: Painter, share: float = 0.13, edited: int = 0, mask_shape: str = "box") -> EditSet:
    """Edits of one object in exact pictures."""
    old, new, masks = tasks.edits(painter.number, painter.seed, share, edited, mask_shape)
    return EditSet(render(old), new, masks)


class Editing:
    """An editor and its engine on one pipeline. The template of every image is made by an edit of another object."""

    def __init__(self, painter: Painter, pipeline: Any, **options: Any) -> None:
        from takeup.serving.diffusion.engine.families import family_of
        from takeup.serving.diffusion.engine.steps import StepEngine
        from takeup.serving.editing.masked.editor import MaskedEditor
        from takeup.serving.editing.templates.store import TemplateStore, TierCapacities
        from takeup.serving.scheduling.adapters import AdapterLERC

        family, room = family_of(pipeline), TierCapacities(host_bytes=64 << 30)
        store = TemplateStore(AdapterLERC, room, device=family.network.device)
        self.painter, self.editor = painter, MaskedEditor(family, store, **options)
        self.engine = StepEngine(pipeline, add_ons=self.editor.add_ons, max_rows=MAX_ROWS)

    def fill(self, share: float = 0.13, strength: float = 1.0) -> None:
        """Record a template of every image."""
        other = edit_set(self.painter, share, edited=1)
        self.edited(replace(edit_set(self.painter, share), wanted=other.wanted, masks=other.masks), strength)

    def edited(self, asked: EditSet, strength: float = 1.0, **how: Any) -> tuple[Any, list[Any]]:
        """The edited pictures, and the runs."""
        from takeup.serving.editing.contract import EditRequest

        requests = self.painter.requests(world.captions(asked.wanted), height_px=None, width_px=None)
        edits = [
            EditRequest(image, mask.astype(np.float32), strength, **how)
            for image, mask in zip(asked.images, asked.masks, strict=True)
        ]
        runs = [self.editor.prepare(request, edit) for request, edit in zip(requests, edits, strict=True)]
        tickets = [self.engine.enter(run) for run in runs]
        self.engine.run()
        pixels = [
            self.editor.finish(edit, self.engine.image(ticket)) for edit, ticket in zip(edits, tickets, strict=True)
        ]
        return _pictures(pixels), runs


@contextmanager
def editing(painter: Painter, pipeline: Any, **options: Any) -> Iterator[Editing]:
    """An editor, closed at the end."""
    made = Editing(painter, pipeline, **options)
    try:
        yield made
    finally:
        made.editor.close()


def edited_pair(
    painter: Painter, share: float = 0.13, strength: float = 1.0, mask_shape: str = "box", **options: Any
) -> Pair:
    """Edits from templates beside edits that compute everything."""
    asked = edit_set(painter, share, mask_shape=mask_shape)
    with editing(painter, painter.pipeline(), **options) as editor:
        editor.fill(share, strength)
        made, _ = editor.edited(asked, strength)
        exact, _ = editor.edited(asked, strength, exact=True)
    before, after = (judge_edit(asked.before, one, asked.masks, asked.wanted).scores for one in (exact, made))
    return Pair(before, after, exact, made)


# Pictures ---------------------------------------------------------------------------------------------------------


def painted_pair(painter: Painter, change: Callable[[Any], dict[str, Any]], **requests: Any) -> Pair:
    """Pictures of an engine that `change` prepares beside those of the plain engine."""
    scenes = painter.scenes()
    asked = painter.requests(world.captions(scenes), **requests)
    exact = painter.painted(painter.pipeline(), asked, max_rows=2)
    pipeline = painter.pipeline()
    made = painter.painted(pipeline, asked, **change(pipeline))
    return Pair(judge(exact, scenes).scores, judge(made, scenes).scores, exact, made)


def late_pair(painter: Painter, late_steps: int, style: str = STYLES[0]) -> Pair:
    """A LoRA that arrives exactly after some steps; the score is the share of the style in each picture."""
    from takeup.serving.diffusion.addons.lora.addon import Loras
    from takeup.serving.diffusion.engine.families import family_of
    from takeup.serving.model import LoraUse
    from takeup.serving.quality import LORA, DelayedLoader, reader_of

    scenes, drawn = painter.scenes(), []
    path = models.lora_path(painter.family, style, painter.folder)
    for steps in (0, late_steps):
        pipeline = painter.pipeline()
        loader = DelayedLoader(reader_of(pipeline, path), steps)
        asked = painter.requests(world.captions(scenes), loras=(LoraUse(LORA),), late_steps=steps)
        add_on = Loras(family_of(pipeline), loader if steps else loader.loader)
        drawn.append(painter.painted(pipeline, asked, loader.step_made if steps else None, add_ons=[add_on]))
    scores = [
        np.array([style_share(image[None], scenes[n : n + 1], style) for n, image in enumerate(images)])
        for images in drawn
    ]
    return Pair(*scores, *drawn)


def reused_pair(painter: Painter, max_change: float) -> Pair:
    """ControlNet residuals that are computed again only when they may have changed by more than `max_change`."""
    from PIL import Image

    from takeup.serving.diffusion.addons.controlnet.addon import Controls
    from takeup.serving.diffusion.engine.families import family_of
    from takeup.serving.model import ControlUse

    scenes, drawn = painter.scenes(), []
    edges = (edge_map(scenes).transpose(0, 2, 3, 1) * 255).round().astype(np.uint8)
    told = world.captions(scenes, np.random.default_rng(painter.seed), vague=1.0)
    asked = [
        replace(request, controls=(ControlUse("edges", Image.fromarray(edge)),))
        for request, edge in zip(painter.requests(told), edges, strict=True)
    ]
    for change in (0.0, max_change):
        pipeline = painter.pipeline()
        net = models.load_controlnet(painter.family, painter.folder).to(painter.device)
        controls = Controls(family_of(pipeline), {"edges": net}, max_change=change)
        drawn.append(painter.painted(pipeline, asked, add_ons=[controls]))
    return Pair(*[judge(images, scenes).scores for images in drawn], *drawn)


# The table --------------------------------------------------------------------------------------------------------


def rows_of(painter: Painter) -> dict[str, Callable[[], Pair]]:
    """Every acceleration by name; what the device or the form does not have is left out."""
    edited, late = partial(edited_pair, painter), partial(late_pair, painter)
    rows: dict[str, Callable[[], Pair]] = {
        "8 pictures in a call": partial(painted_pair, painter, lambda _: {"max_rows": 16}),
        "bfloat16": partial(painted_pair, painter, _half),
        "masked edit, ellipse of 20%": partial(edited, 0.2, mask_shape="ellipse"),
        "masked edit of 20%, strength 0.7": partial(edited, 0.2, 0.7),
    }
    for share in (0.05, 0.1, 0.2, 0.5):
        rows[f"masked edit of {share:.0%}"] = partial(edited, share)
    for budget in (0.02, 0.05, 0.1, 0.2):
        rows[f"masked edit of 13%, template packed at {budget:.0%}"] = partial(edited, budget=budget)
    for stride in (2, 4):
        rows[f"masked edit of 13%, every {stride} steps kept"] = partial(edited, stride=stride)
    for steps in (painter.steps // 10, painter.steps // 4):
        rows[f"LoRA late by {steps} of {painter.steps} steps"] = partial(late, steps)
    if painter.family == "sdxl":
        rows["masked edit of 13%, convolutions whole"] = partial(edited, convolutions=False)
        for change in (0.05, 0.2):
            rows[f"ControlNet residuals reused below {change:g}"] = partial(reused_pair, painter, change)
    if painter.device.startswith("cuda"):
        rows["8-bit products (fp8)"] = partial(painted_pair, painter, _eight_bits)
    return rows


def _half(pipeline: Any) -> dict[str, Any]:
    import torch

    pipeline.to(torch.bfloat16)
    return {}


def _eight_bits(_: Any) -> dict[str, Any]:
    from takeup.serving.diffusion.execution.executors import CudaGraphExecutor

    return {"compute": CudaGraphExecutor(eight_bits=True)}


def report(painter: Painter, only: Sequence[str] = ()) -> Report:
    """The table of a form; `only` rows whose names contain one of these words."""
    rows = {name: make for name, make in rows_of(painter).items() if not only or any(word in name for word in only)}
    if not rows:
        raise BadInput(f"no acceleration is called {', '.join(only)}; leave out the choice to see all of them")
    return table_of(painter, tuple(make().row(name) for name, make in rows.items()))


def table_of(painter: Painter, rows: tuple[tuple[Any, ...], ...]) -> Report:
    """The report of rows."""
    return Report(
        title=f"What accelerations cost: the {painter.family} form of takeup/scenes",
        domain="serving",
        scenario={"form": painter.family, "pictures": painter.number, "steps": painter.steps, "device": painter.device},
        seed=painter.seed,
        tables=(Table("Scores both ways", COLUMNS, rows, "Difference: accelerated minus exact, with 95 % interval."),),
        notes=("Edits: the new object is right, the rest untouched, no seam. LoRAs: share of the style.",),
    )
