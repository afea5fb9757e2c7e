"""Scores of exported scene models by stock diffusers pipelines: pictures, edits, edge maps and styles.

All captions are held out. `score` returns one mapping of results with 95 % bootstrap intervals over pictures and
writes it as JSON; `docs/concepts/scenes.md` quotes it.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from takeup.scenes import models, tasks, world
from takeup.scenes.judge import edge_agreement, interval, judge, judge_edit, psnr, style_share
from takeup.scenes.render import SIDE, STYLES, edge_map, render
from takeup.scenes.world import Scenes

SEED = 4


def score(
    folder: Path, family: str, number: int, device: str = "cpu", steps: int = 20, only: str = ""
) -> dict[str, Any]:
    """Scores of a family's exported weights on `number` held-out captions; a quarter of them for add-ons."""
    pipeline, options = (
        models.load(family, folder).to(device),
        {"steps": steps, "guidance_scale": models.GUIDANCE[family]},
    )
    quarter = max(number // 4, 4)
    found: dict[str, Any] = {"family": family, "steps": steps, "captions": number}
    if "pictures" in (only or "pictures"):
        found |= _told("pictures", _score_pictures(pipeline, number, options, folder / f"{family}-pictures.png"))
    if "edits" in (only or "edits"):
        found |= _told("edits", _score_edits(pipeline, family, quarter, options, folder / f"{family}-edits.png"))
    for style in STYLES if "styles" in (only or "styles") else ():
        if (path := models.lora_path(family, style, folder)).exists():
            found |= _told(style, _score_style(pipeline, path, style, quarter, options))
    if "edges" in (only or "edges") and (folder / f"{family}-edges").exists():
        found |= _told("edges", _score_edges(pipeline, family, folder, quarter, options, device))
    return found


def _told(name: str, found: dict[str, Any]) -> dict[str, Any]:
    print(name, json.dumps(found), flush=True)
    return {name: found}


def sheet(images: Any, path: Path, columns: int = 8) -> None:
    """Write pictures [n, 3, side, side] as one PNG."""
    rows = [np.concatenate(list(images[first : first + columns]), 2) for first in range(0, len(images), columns)]
    pixels = np.concatenate(rows, 1).transpose(1, 2, 0)
    import_module("PIL.Image").fromarray((pixels * 255).round().astype(np.uint8)).save(path)


def save(found: dict[str, Any], path: Path) -> None:
    """Write scores as JSON."""
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def paint(pipeline: Any, prompts: list[str], steps: int, seed: int = 0, **more: Any) -> Any:
    """Pictures of prompts by a stock pipeline, [n, 3, 128, 128], each from its own seed."""
    torch = import_module("torch")
    more = {"guidance_scale": 3.0} | more
    if hasattr(pipeline, "transformer"):
        more["max_sequence_length"] = models.MAX_TOKENS
    images = []
    for first in range(0, len(prompts), 64):
        part = slice(first, first + 64)
        batch = {key: value[part] if hasattr(value, "ndim") else value for key, value in more.items()}
        batch |= {"height": SIDE, "width": SIDE, "num_inference_steps": steps, "output_type": "pt"}
        noise = [torch.Generator().manual_seed(seed + first + n) for n in range(len(prompts[part]))]
        with torch.no_grad():
            made = pipeline(prompts[part], generator=noise, **batch).images
        images.append(made.float().clamp(0, 1).cpu().numpy())
    return np.concatenate(images)


# One kind of result each ------------------------------------------------------------------------------------------


def _score_pictures(pipeline: Any, number: int, options: dict[str, Any], path: Path) -> dict[str, Any]:
    scenes = world.sample(SEED, number, held_out=True).centred()
    images = paint(pipeline, world.captions(scenes), **options)
    sheet(images[:32], path, columns=min(number, 8))
    return _described(judge(images, scenes))


def _described(verdict: Any) -> dict[str, Any]:
    right = verdict.right.sum(axis=1) / verdict.present.sum(axis=1)
    return {
        **{name: round(value, 4) for name, value in verdict.shares().items()},
        "right_of_a_picture": _interval(right),
        "score_of_a_picture": _interval(verdict.scores),
    }


def _interval(values: Any) -> list[float]:
    return [round(value, 4) for value in interval(values)]


def _score_edits(pipeline: Any, family: str, number: int, options: dict[str, Any], path: Path) -> dict[str, Any]:
    """Stock inpainting of rendered pictures; what lies outside the mask is then put back, as editors do."""
    kind = {"sdxl": "StableDiffusionXLInpaintPipeline", "flux": "FluxInpaintPipeline"}[family]
    torch, editor = import_module("torch"), getattr(import_module("diffusers"), kind)(**_parts(pipeline))
    editor.set_progress_bar_config(disable=True)
    old, new, mask = tasks.edits(number, SEED + 1)
    before = render(old)
    inputs = {"image": torch.tensor(before).float(), "mask_image": torch.tensor(mask[:, None]).float(), "strength": 1.0}
    after = paint(editor, world.captions(new), **options, **inputs)
    outside = psnr(np.where(mask[:, None], before, after), before)
    pasted = np.where(mask[:, None], after, before)
    verdict = judge_edit(before, pasted, mask, new)
    sheet(np.concatenate([before[:4], pasted[:4]]), path, columns=4)
    return {
        **{name: round(value, 4) for name, value in verdict.shares().items()},
        "new_of_an_edit": _interval(verdict.new),
        "unedited_would_count": round(float(judge_edit(before, before, mask, new).new.mean()), 4),
        "psnr_outside_before_paste_db": round(float(outside.mean()), 2),
    }


def _parts(pipeline: Any) -> dict[str, Any]:
    parts = {name: part for name, part in pipeline.components.items() if part is not None}
    return parts | ({"add_watermarker": False} if "unet" in parts else {})


def _score_edges(
    pipeline: Any, family: str, folder: Path, number: int, options: dict[str, Any], device: str
) -> dict[str, Any]:
    """Captions without shapes and sizes: only the edge map tells them."""
    torch, diffusers = import_module("torch"), import_module("diffusers")
    kind = {"sdxl": "StableDiffusionXLControlNetPipeline", "flux": "FluxControlNetPipeline"}[family]
    control = models.load_controlnet(family, folder).to(device)
    painter = getattr(diffusers, kind)(**_parts(pipeline), controlnet=control)
    painter.set_progress_bar_config(disable=True)
    scenes = world.sample(SEED + 2, number, held_out=True).centred()
    told, asked = world.captions(scenes, np.random.default_rng(SEED), vague=1.0), edge_map(scenes)
    image = {"image" if family == "sdxl" else "control_image": torch.tensor(asked).float()}
    drawn = {"with": paint(painter, told, **options, **image), "without": paint(pipeline, told, **options)}
    found: dict[str, Any] = {}
    for name, images in drawn.items():
        verdict = judge(images, scenes)
        found[f"right_{name}"] = _interval(verdict.right.sum(axis=1) / verdict.present.sum(axis=1))
        found[f"agreement_{name}"] = _interval(edge_agreement(images, asked))
    return found


def _score_style(pipeline: Any, path: Path, style: str, number: int, options: dict[str, Any]) -> dict[str, Any]:
    scenes = world.sample(SEED + 3, number, held_out=True).centred()
    told = world.captions(scenes)
    plain = paint(pipeline, told, **options)
    pipeline.load_lora_weights(str(path.parent), weight_name=path.name, adapter_name=style)
    styled = paint(pipeline, told, **options)
    pipeline.unload_lora_weights()
    return {
        "share_without": round(style_share(plain, scenes, style), 4),
        "share_with": round(style_share(styled, scenes, style), 4),
        "right_without": _interval(_right(plain, scenes)),
        "right_with": _interval(_right(styled, scenes)),
    }


def _right(images: Any, scenes: Scenes) -> Any:
    verdict = judge(images, scenes)
    return verdict.right.sum(axis=1) / verdict.present.sum(axis=1)
