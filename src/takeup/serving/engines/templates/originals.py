"""Edited images by the identifier of their template: the next edit can name one instead of sending it.

Each is stored unmodified as a file in the folder of its owner. Each owner has a quota in bytes, with LRU eviction.
Several processes may share the folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from takeup.core.files import write_atomically
from takeup.errors import BadInput, OutputFailed
from takeup.serving.engines.templates.keys import owner_of

ORIGINAL_SUFFIX = ".original"
TEMPLATE_ID = re.compile(r"tpl_[0-9a-f]{24}")


@dataclass(frozen=True, slots=True)
class Original:
    """A stored image: its template, the size of its file, and its time of last use."""

    template: str
    size_bytes: int
    used_s: float


class Originals:
    """The images of all tenants in one folder."""

    def __init__(self, folder: Path, owner_bytes: int) -> None:
        self._folder, self._owner_bytes = folder, owner_bytes

    def keep(self, tenant: str, template: str, data: bytes) -> bool:
        """Store the image. False if it is too large or the disk is full; edits then continue without it."""
        path = self._path(tenant, template)
        if len(data) > self._owner_bytes:
            return False
        try:
            if path.exists():
                os.utime(path)
            else:
                self._make_room(tenant, len(data))
                write_atomically(path, data)
        except (OSError, OutputFailed):
            return False
        return True

    def find(self, tenant: str, template: str) -> bytes | None:
        """The bytes of the image, if it belongs to this tenant."""
        if not TEMPLATE_ID.fullmatch(template):
            return None
        path = self._path(tenant, template)
        with suppress(OSError):
            os.utime(path)
            return path.read_bytes()
        return None

    def remove(self, tenant: str, template: str) -> None:
        """Delete it; no effect if it does not exist."""
        if TEMPLATE_ID.fullmatch(template):
            self._path(tenant, template).unlink(missing_ok=True)

    def seen_by(self, tenant: str) -> list[Original]:
        """The images of a tenant, most recently used first."""
        return sorted(self._all(tenant), key=lambda one: -one.used_s)

    def _all(self, tenant: str) -> Iterator[Original]:
        for path in (self._folder / owner_of(tenant)).glob(f"*{ORIGINAL_SUFFIX}"):
            with suppress(FileNotFoundError):  # other processes delete files too
                facts = path.stat()
                yield Original(path.name.removesuffix(ORIGINAL_SUFFIX), facts.st_size, facts.st_mtime)

    def _make_room(self, tenant: str, size_bytes: int) -> None:
        kept = self.seen_by(tenant)
        while kept and sum(one.size_bytes for one in kept) + size_bytes > self._owner_bytes:
            self.remove(tenant, kept.pop().template)

    def _path(self, tenant: str, template: str) -> Path:
        if not TEMPLATE_ID.fullmatch(template):
            raise BadInput(f"{template!r} is no template; use one that an edit has told")
        return self._folder / owner_of(tenant) / f"{template}{ORIGINAL_SUFFIX}"
