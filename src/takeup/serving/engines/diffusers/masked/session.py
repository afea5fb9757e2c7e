"""A single edit end to end, for callers without an engine; images are given by file, or by template."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from PIL import Image

from takeup.errors import BadInput
from takeup.serving.engines.diffusers.families import family_of
from takeup.serving.engines.diffusers.masked.asked import EditRequest
from takeup.serving.engines.diffusers.masked.editing import EditReport
from takeup.serving.engines.diffusers.masked.editor import MaskedEditor, disk_store, report_of
from takeup.serving.engines.diffusers.masked.images import image_id, pixels_of
from takeup.serving.engines.diffusers.steps import StepEngine
from takeup.serving.engines.templates.keys import template_id
from takeup.serving.engines.templates.originals import Originals
from takeup.serving.engines.templates.store import TierCapacities
from takeup.serving.model import Request

DISK_BYTES = 100 << 30


def edit_once(
    pipeline: Any,
    request: Request,
    edit: EditRequest,
    templates: Path | None = None,
    budget: float = 0.0,
) -> tuple[Any, EditReport]:
    """The edited picture, and statistics. `templates` is a folder in which templates persist across processes."""
    family = family_of(pipeline)
    store = (
        None
        if templates is None
        else disk_store(templates, family.network.device, TierCapacities(disk_bytes=DISK_BYTES))
    )
    editor = MaskedEditor(family, store, budget=budget)
    try:
        engine = StepEngine(pipeline, add_ons=editor.add_ons)
        ticket = engine.enter(editor.prepare(request, edit))
        engine.run()
        edited = editor.finish(edit, engine.image(ticket))
        return _picture(edited), report_of(ticket.result())
    finally:
        editor.close()


def open_original(name: str, templates: Path | None = None) -> tuple[Image.Image, str | None]:
    """Open a file, or the original of an earlier edit by template id; also returns the id if it is stored."""
    originals = None if templates is None else Originals(templates, DISK_BYTES)
    data = (originals and originals.find("", name)) or _bytes_of(Path(name))
    picture = _opened(data, name)
    template = template_id("", image_id(pixels_of(picture)))
    is_kept = originals is not None and originals.keep("", template, data)
    return picture, template if is_kept else None


def _opened(data: bytes, name: str) -> Image.Image:
    try:
        with Image.open(io.BytesIO(data)) as opened:
            opened.load()
            return opened.copy()
    except OSError as error:
        raise BadInput(f"{name} cannot be read as an image; give a PNG, JPEG or WebP file") from error


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(
            f"{path} cannot be read ({error.strerror}); give the file of an image, or a template of --templates"
        ) from error


def _picture(image: Any) -> Image.Image:
    return Image.fromarray((image[0].permute(1, 2, 0) * 255).round().byte().cpu().numpy())
