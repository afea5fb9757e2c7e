"""Templates on disk: a folder of files for every owner, with a quota per owner and a total quota.

Several processes may share the folder: files are written atomically, a file deleted while in use stays mapped, and
changes by other processes are noticed when space is freed. Forgetting an image is recorded on disk as a new
*generation*, so that all processes notice it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from takeup.core.files import write_atomically
from takeup.errors import BadInput, OutputFailed
from takeup.serving.contract import CachePolicy
from takeup.serving.engines.templates.files import UNFINISHED, read_template, write_template
from takeup.serving.engines.templates.keys import TemplateKey, digest_of, template_of
from takeup.serving.engines.templates.templates import Template

SUFFIX = ".template"
FORGOTTEN = ".forgotten"
UNFINISHED_S = 3600.0
MOST_PROBLEMS = 100


class TemplateFolder:
    """`policy` selects the victim file. Errors are recorded in `problems`; the template is then not kept."""

    def __init__(self, folder: Path, policy: CachePolicy, most_bytes: int, owner_bytes: int) -> None:
        self._folder, self._policy = folder, policy
        self._most_bytes, self._owner_bytes = most_bytes, owner_bytes
        self._seen: set[str] = set()
        self._lock = threading.Lock()
        self.problems: deque[str] = deque(maxlen=MOST_PROBLEMS)
        self._sweep()

    @property
    def size_bytes(self) -> int:
        """The total size of all files."""
        return self._used_bytes("*")

    def find(self, key: TemplateKey) -> Template | None:
        """The template, memory-mapped and verified; an invalid file is deleted."""
        path = self._path(key.name)
        if not path.exists():
            return None
        try:
            template = read_template(path, digest_of(key.name))
        except BadInput as problem:
            self.problems.append(str(problem))
            self._drop(key.name)
            return None
        with self._lock:
            self._used(key.name)
        return template

    def put(self, key: TemplateKey, template: Template, wanted: Collection[str]) -> None:
        """Write it, evicting files until it fits; those in `wanted` are evicted last."""
        try:
            self._make_room(key.name.split("/")[0], template.size_bytes, self._owner_bytes, wanted)
            self._make_room("*", template.size_bytes, self._most_bytes, wanted)
            write_template(self._path(key.name), template, digest_of(key.name))
        except (OSError, OutputFailed) as problem:
            self.problems.append(str(problem))
            return
        with self._lock:
            self._used(key.name)

    def drop(self, key: TemplateKey) -> None:
        """Delete one file."""
        self._drop(key.name)

    def generation(self, template: str) -> str:
        """Changes whenever the image is forgotten, by any process."""
        try:
            return (self._folder / FORGOTTEN / template).read_text()
        except OSError:
            return ""

    def forget(self, template: str) -> None:
        """Delete all files of an image, and notify other processes."""
        try:
            write_atomically(self._folder / FORGOTTEN / template, secrets.token_hex(8))
        except OutputFailed as problem:
            self.problems.append(str(problem))
        for name in self._names("*"):
            if template_of(name) == template:
                self._drop(name)

    # ---------------------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Delete temporary files of killed processes; younger ones may still be in use."""
        for path in self._folder.glob(f"*/{UNFINISHED}*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > UNFINISHED_S:
                    path.unlink()

    def _make_room(self, owner: str, size_bytes: int, most_bytes: int, wanted: Collection[str]) -> None:
        if size_bytes > most_bytes:
            raise OutputFailed(
                f"a template of {size_bytes} bytes is above the quota of {most_bytes}; give it more room"
            )
        while self._used_bytes(owner) + size_bytes > most_bytes:
            names = self._names(owner)
            self._drop(self._victim([name for name in names if name not in wanted] or names, wanted))

    def _victim(self, names: list[str], wanted: Collection[str]) -> str:
        with self._lock:
            for name in names:
                if name not in self._seen:  # from before this process, or from another one
                    self._used(name)
            return str(self._policy.victim(names, tuple((one,) for one in wanted)))

    def _drop(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)
        with self._lock:
            if name in self._seen:
                self._seen.remove(name)
                self._policy.left(name)

    def _used(self, name: str) -> None:
        self._seen.add(name)
        self._policy.used(name)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}{SUFFIX}"

    def _paths(self, owner: str) -> list[Path]:
        return sorted(self._folder.glob(f"{owner}/*{SUFFIX}"))

    def _names(self, owner: str) -> list[str]:
        return [f"{path.parent.name}/{path.name.removesuffix(SUFFIX)}" for path in self._paths(owner)]

    def _used_bytes(self, owner: str) -> int:
        sizes = 0
        for path in self._paths(owner):
            with suppress(FileNotFoundError):  # other processes evict files too
                sizes += path.stat().st_size
        return sizes
