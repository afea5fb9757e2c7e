"""One edit from beginning to end, for callers without an engine of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from takeup.serving.engines.diffusers.families import family_of
from takeup.serving.engines.diffusers.masked.asked import Edit
from takeup.serving.engines.diffusers.masked.editing import EditReport
from takeup.serving.engines.diffusers.masked.editor import MaskedEditor, disk_store, report_of
from takeup.serving.engines.diffusers.steps import StepEngine
from takeup.serving.engines.templates.store import Room
from takeup.serving.model import Request

__all__ = ["edit_once"]

DISK_BYTES = 100 << 30


def edit_once(
    pipeline: Any,
    request: Request,
    edit: Edit,
    templates: Path | None = None,
    budget: float = 0.0,
) -> tuple[Any, EditReport]:
    """The edited picture, and what was done. `templates` is a folder in which templates outlive this process."""
    family = family_of(pipeline)
    store = None if templates is None else disk_store(templates, family.network.device, Room(disk_bytes=DISK_BYTES))
    editor = MaskedEditor(family, store, budget=budget)
    try:
        engine = StepEngine(pipeline, add_ons=editor.add_ons)
        ticket = engine.enter(editor.prepare(request, edit))
        engine.run()
        edited = editor.finish(edit, engine.image(ticket))
        return _picture(edited), report_of(ticket.result())
    finally:
        editor.close()


def _picture(image: Any) -> Any:
    from PIL import Image

    return Image.fromarray((image[0].permute(1, 2, 0) * 255).round().byte().cpu().numpy())
