"""Image editing: the `Editor` interface, which other implementations can replace, and the default editor.

An editor prepares a run for the step engine, and may modify the decoded image; both outside the step loop. To act
inside the loop, it provides add-ons.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import torch

from takeup.core.lazy import load
from takeup.serving.diffusion.contract import AddOn, DenoisingRun
from takeup.serving.diffusion.engine.families import Family
from takeup.serving.editing.contract import EditRequest
from takeup.serving.editing.masked.edit_state import EditReport
from takeup.serving.editing.templates.store import TemplateStore, TierCapacities
from takeup.serving.model import Request
from takeup.serving.scheduling.adapters import AdapterLERC

EDITOR = "takeup.serving.editing.masked.editor:MaskedEditor"
"""What servers edit with."""
FORMATS = "takeup.serving.editing.masked.template_reader:fastest_forms"

GIBI = 2**30


@dataclass(frozen=True, slots=True)
class TemplateStorage:
    """Where templates are kept, how much of them, for each tenant on disk; how wrong packing may make them.

    `device_bytes` are those of an accelerator, where there is one: edits need not wait for templates that lie there.
    With rows, templates are half again as large, and those in memory of the host come faster.
    """

    folder: Path | None = None
    device_bytes: int = 0
    memory_bytes: int = GIBI
    disk_bytes: int = 64 * GIBI
    tenant_bytes: int = 8 * GIBI
    packing_error: float = 0.0
    has_rows: bool = False


NO_TEMPLATES = TemplateStorage(memory_bytes=0)
"""Edits then compute everything, and do not depend on those before them."""


class Editor(Protocol):
    """Turns an edit into a run."""

    @property
    def add_ons(self) -> Sequence[AddOn]:
        """What it does in the step loop."""

    def prepare(self, request: Request, edit: EditRequest) -> DenoisingRun:
        """As `prepare` of the family, from an image."""

    def finish(self, edit: EditRequest, image: torch.Tensor) -> torch.Tensor:
        """The decoded image (values from 0 to 1, channels first, one row) as it is answered."""

    def report(self, run: DenoisingRun) -> EditReport:
        """What was done."""

    def forget(self, template: str) -> None:
        """Keep nothing of this image any more."""

    def close(self) -> None:
        """Give back all that is held."""


def make_editor(family: Family, room: TemplateStorage, *, binds: bool = False) -> Editor:
    """The editor of a server; processes that share the folder share the templates. `binds`: record masked calls."""
    on_disk = 0 if room.folder is None else room.disk_bytes
    on_device = room.device_bytes if torch.device(family.network.device).type == "cuda" else 0
    tiers = TierCapacities(on_device, room.memory_bytes, on_disk, room.tenant_bytes)
    store = TemplateStore(AdapterLERC, tiers, room.folder, family.network.device)
    formats = load(FORMATS) if room.has_rows else None
    editor: Editor = load(EDITOR)(
        family, store, budget=room.packing_error, identity=_bytes_of, binds=binds, formats=formats
    )
    return editor


def _bytes_of(path: str) -> str:
    """Which bytes a LoRA has; servers name LoRAs by their paths."""
    facts = Path(path).stat()
    return _digest(path, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=1024)
def _digest(path: str, changed_ns: int, size_bytes: int) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
