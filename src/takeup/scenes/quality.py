"""What accelerations cost: the same tasks made twice, exactly and accelerated, from the same seeds.

Pictures of trained scene models are judged; the difference of the scores is paired by picture, with a 95 % bootstrap
interval. Those of any other model are compared pixel by pixel only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from takeup.core.report import Check, Column, Report, Table
from takeup.errors import BadInput
from takeup.scenes import models, tasks, world
from takeup.scenes.judge import interval, judge, judge_edit, psnr, ssim, style_share
from takeup.scenes.render import STYLES, edge_map, render
from takeup.serving.diffusion.addons.controlnet.addon import Controls
from takeup.serving.diffusion.addons.lora.addon import Loras
from takeup.serving.diffusion.addons.lora.loading import LoraLoader, ThreadLoader
from takeup.serving.diffusion.addons.lora.targets import LoraTargets
from takeup.serving.diffusion.addons.lora.weights import Lora
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.execution.executors import CudaGraphExecutor
from takeup.serving.editing.contract import EditRequest
from takeup.serving.editing.masked.editor import MaskedEditor
from takeup.serving.editing.templates.store import TemplateStore, TierCapacities
from takeup.serving.model import ControlUse, LoraUse, Request
from takeup.serving.scheduling.adapters import AdapterLERC

SEED, MAX_ROWS, LORA = 11, 32, "lora"
Score = Callable[[Any], Any]
"""The score of each picture."""
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
class Tasks:
    """Requests for pictures; their score if there is a judge, the LoRA of all requests, and ControlNets by name."""

    requests: Sequence[Request]
    score: Score | None = None
    lora: Path | None = None
    nets: Callable[[Any], Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class ModelPainter:
    """Any model: how it is opened, and what is asked of it."""

    open_pipeline: Callable[[], Any]
    asked: Sequence[Request]
    lora: Path | None = None
    late_steps: int = 5
    control_change: float = 0.05

    def pipeline(self) -> Any:
        """A new pipeline."""
        return self.open_pipeline()

    def plain(self, **more: Any) -> Tasks:
        """Pictures of the prompts."""
        return Tasks([replace(request, **more) for request in self.asked], lora=self.lora)

    def steered(self) -> Tasks:
        """Pictures under all ControlNets of the model, each given a radial gradient."""
        uses = tuple(ControlUse(name, Image.radial_gradient("L")) for name in _own_nets(self.pipeline()))
        return replace(self.plain(controls=uses), nets=_own_nets)

    def rows(self) -> dict[str, Callable[[], Pair]]:
        """Every acceleration by name; without a LoRA or a ControlNet there are fewer."""
        rows: dict[str, Callable[[], Pair]] = {
            "recorded": partial(painted_pair, self, _recorded),
            "eight": partial(painted_pair, self, _eight_bits),
            "bfloat16": partial(painted_pair, self, _half),
        }
        if self.lora is not None:
            rows["late"] = lambda: late_pair(self, self.plain(), self.late_steps)
        if _own_nets(self.pipeline()):
            rows["reused"] = lambda: reused_pair(self, self.steered(), self.control_change)
        return rows


def _own_nets(pipeline: Any) -> Mapping[str, Any]:
    own = getattr(pipeline, "controlnet", None)
    nets = [] if own is None else getattr(own, "nets", [own])
    return {str(number): net for number, net in enumerate(nets)}


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

    def plain(self, **more: Any) -> Tasks:
        """Pictures of the captions of held-out scenes."""
        scenes = self.scenes()
        return Tasks(self.requests(world.captions(scenes), **more), lambda images: judge(images, scenes).scores)

    def styled(self, style: str = STYLES[0]) -> Tasks:
        """The same in a style; the score is its share in each picture."""
        scenes = self.scenes()

        def share(images: Any) -> Any:
            return np.array([style_share(image[None], scenes[n : n + 1], style) for n, image in enumerate(images)])

        return replace(self.plain(), score=share, lora=models.lora_path(self.family, style, self.folder))

    def steered(self) -> Tasks:
        """Pictures of vague captions and of edge maps."""
        scenes = self.scenes()
        edges = (edge_map(scenes).transpose(0, 2, 3, 1) * 255).round().astype(np.uint8)
        told = world.captions(scenes, np.random.default_rng(self.seed), vague=1.0)
        asked = [
            replace(request, controls=(ControlUse("edges", Image.fromarray(edge)),))
            for request, edge in zip(self.requests(told), edges, strict=True)
        ]
        return replace(self.plain(), requests=asked, nets=self._nets)

    def _nets(self, _: Any) -> Mapping[str, Any]:
        return {"edges": models.load_controlnet(self.family, self.folder).to(self.device)}


def _pictures(images: Any) -> Any:
    return np.concatenate([image.float().clamp(0, 1).cpu().numpy() for image in images])


@dataclass(frozen=True)
class Pair:
    """Pictures of the same tasks both ways, and their scores if there is a judge."""

    exact: Any
    made: Any
    exact_scores: Any = None
    scores: Any = None

    def row(self, name: str) -> tuple[Any, ...]:
        """A row of `COLUMNS`."""
        nearness = float(np.mean(psnr(self.made, self.exact))), float(np.mean(ssim(self.made, self.exact)))
        if self.scores is None:
            return name, len(self.made), *[None] * 5, *nearness
        gaps = [100 * value for value in interval(np.asarray(self.scores) - self.exact_scores)]
        means = [100 * float(np.mean(scores)) for scores in (self.exact_scores, self.scores)]
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
    return Pair(exact, made, before, after)


# Pictures ---------------------------------------------------------------------------------------------------------


def painted(pipeline: Any, requests: Sequence[Request], on_step: Any = None, **engine: Any) -> Any:
    """The pictures, [n, 3, height, width], of the step engine."""
    made = StepEngine(pipeline, **engine)
    tickets = [made.submit(request, on_step) for request in requests]
    made.run()
    return _pictures(made.image(ticket) for ticket in tickets)


def _pair(tasks: Tasks, exact: Any, made: Any) -> Pair:
    return Pair(exact, made) if tasks.score is None else Pair(exact, made, tasks.score(exact), tasks.score(made))


def painted_pair(painter: Painter | ModelPainter, change: Callable[[Any], dict[str, Any]], **requests: Any) -> Pair:
    """Pictures of an engine that `change` prepares beside those of the plain engine."""
    tasks = painter.plain(**requests)
    drawn = []
    for prepare in (_plain, change):
        pipeline = painter.pipeline()
        drawn.append(_with_lora(pipeline, tasks, 0, **prepare(pipeline)))
    return _pair(tasks, *drawn)


def late_pair(painter: Painter | ModelPainter, tasks: Tasks, late_steps: int) -> Pair:
    """A LoRA that arrives exactly after some steps."""
    return _pair(tasks, *[_with_lora(painter.pipeline(), tasks, steps) for steps in (0, late_steps)])


def _with_lora(pipeline: Any, tasks: Tasks, late_steps: int, **engine: Any) -> Any:
    """The pictures of an engine with the LoRA of these tasks, if they have one."""
    if tasks.lora is None:
        return painted(pipeline, tasks.requests, **engine)
    family, loader = family_of(pipeline), ThreadLoader({LORA: tasks.lora}, LoraTargets.of(pipeline))
    late = DelayedLoader(loader, late_steps)
    stacks = engine["compute"].prepared(family.network).stacks if "compute" in engine else None
    asked = [replace(one, loras=(LoraUse(LORA),), late_steps=late_steps) for one in tasks.requests]
    loras = Loras(family, late if late_steps else loader, stacks=stacks)
    return painted(pipeline, asked, late.step_made if late_steps else None, add_ons=[loras], **engine)


@dataclass(slots=True)
class DelayedLoader(LoraLoader):
    """A loader that delivers LoRAs only after `num_steps` steps, to simulate late loads."""

    loader: LoraLoader
    num_steps: int
    _waiting: list[Future[Lora]] = field(default_factory=list)

    def load(self, name: str) -> Future[Lora]:
        """A future that waits for `step_made`."""
        answer: Future[Lora] = Future()
        self._waiting.append(answer)
        return answer

    def close(self) -> None:
        """Close the loader behind it."""
        self.loader.close()

    def step_made(self, step: int, num_steps: int) -> None:
        """Step callback: complete the pending loads once `num_steps` steps are done."""
        if step >= self.num_steps:
            for answer in self._waiting:
                answer.set_result(self.loader.load(LORA).result())
            self._waiting.clear()


def reused_pair(painter: Painter | ModelPainter, tasks: Tasks, max_change: float) -> Pair:
    """ControlNet residuals that are computed again only when they may have changed by more than `max_change`."""
    assert tasks.nets is not None
    drawn = []
    for change in (0.0, max_change):
        pipeline = painter.pipeline()
        controls = Controls(family_of(pipeline), tasks.nets(pipeline), max_change=change)
        drawn.append(painted(pipeline, tasks.requests, add_ons=[controls]))
    return _pair(tasks, *drawn)


# The table --------------------------------------------------------------------------------------------------------


def rows_of(painter: Painter) -> dict[str, Callable[[], Pair]]:
    """Every acceleration by name; what the device or the form does not have is left out."""
    edited = partial(edited_pair, painter)
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
        rows[f"LoRA late by {steps} of {painter.steps} steps"] = partial(_late_style, painter, steps)
    if painter.family == "sdxl":
        rows["masked edit of 13%, convolutions whole"] = partial(edited, convolutions=False)
        for change in (0.05, 0.2):
            rows[f"ControlNet residuals reused below {change:g}"] = partial(_reused_edges, painter, change)
    if painter.device.startswith("cuda"):
        rows["8-bit products (fp8)"] = partial(painted_pair, painter, _eight_bits)
    return rows


def _late_style(painter: Painter, late_steps: int) -> Pair:
    return late_pair(painter, painter.styled(), late_steps)


def _reused_edges(painter: Painter, max_change: float) -> Pair:
    return reused_pair(painter, painter.steered(), max_change)


def _plain(_: Any) -> dict[str, Any]:
    return {"max_rows": 2}


def _half(pipeline: Any) -> dict[str, Any]:
    pipeline.to(torch.bfloat16)
    return {}


def _recorded(_: Any, *, eight_bits: bool = False) -> dict[str, Any]:
    return {"compute": CudaGraphExecutor(eight_bits=eight_bits)}


_eight_bits = partial(_recorded, eight_bits=True)


def _chosen(rows: dict[str, Callable[[], Pair]], only: Sequence[str]) -> tuple[tuple[Any, ...], ...]:
    """Those rows whose names contain one of these words, or all."""
    chosen = {name: make for name, make in rows.items() if not only or any(word in name for word in only)}
    if not chosen:
        raise BadInput(f"no acceleration here is called {', '.join(only)}; choose from {', '.join(rows)}")
    return tuple(make().row(name) for name, make in chosen.items())


def report(painter: Painter, only: Sequence[str] = ()) -> Report:
    """The table of a form; `only` rows whose names contain one of these words."""
    return table_of(painter, _chosen(rows_of(painter), only))


def model_report(painter: ModelPainter, name: str, only: Sequence[str] = (), least_ssim: float = 0.0) -> Report:
    """The table of any model, with a bar for every mean of the similarity."""
    rows = _chosen(painter.rows(), only)
    return Report(
        title=f"What accelerations cost: {name}",
        domain="serving",
        scenario={"model": name, "pictures": len(painter.asked)},
        seed=painter.asked[0].seed,
        tables=(Table("Pictures both ways", COLUMNS, rows, "PSNR is 100 dB where all are equal."),),
        checks=tuple(Check.at_least(f"{row[0]}: SSIM in the mean", row[-1], least_ssim) for row in rows),
        notes=("LPIPS and CLIP scores were not measured: they need trained weights, and none are shipped.",),
    )


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
