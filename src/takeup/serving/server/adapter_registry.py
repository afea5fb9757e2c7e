"""Adapter registry: LoRA files of every tenant, and shared ones.

How it works. An uploaded file is written to a temporary name in the target folder, read by the loader that requests use
(every key, every number), and only then renamed atomically: registered files are complete and fit the model.
Its name on disk carries a digest, so a name that is deleted and uploaded again never means the old file. A request
*holds* its adapters until it is over; what is deleted meanwhile is not listed any more, and its file goes with the last
holder.
"""

import hashlib
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import BinaryIO

from takeup.core.files import sync_folder
from takeup.errors import BadInput, OutputFailed
from takeup.serving.diffusion.addons.lora.file_format import read_lora
from takeup.serving.diffusion.addons.lora.targets import LoraTargets
from takeup.serving.server.access import NAME
from takeup.serving.server.errors import DO_NOT_RETRY, ApiError

SHARED = ""
"""The owner of what all may use; no tenant has this name."""

SUFFIX, INCOMING = ".safetensors", ".incoming-"
CHUNK_BYTES = 2**20
UNFINISHED_S = 3600.0
SCAN_S, MAX_PINNED = 2.0, 16
ON_DISK = re.compile(rf"({NAME})\.([0-9a-f]{{16}}){re.escape(SUFFIX)}")
Forget = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RegisteredAdapter:
    """A LoRA in the registry. Its path is its name for the backend."""

    name: str
    owner: str
    path: Path
    size_bytes: int
    created_s: float
    is_pinned: bool = False

    @property
    def is_shared(self) -> bool:
        return self.owner == SHARED


class AdapterRegistry:
    """Thread-safe. `forget` is called with the path of an adapter after its file was deleted."""

    def __init__(
        self, uploads: Path, shared: Path | None, targets: LoraTargets, forget: Forget, max_adapters: int = 1_000
    ) -> None:
        self._uploads, self._targets, self._forget, self._max_adapters = uploads, targets, forget, max_adapters
        self._shared, self._scanned_s = shared, time.monotonic()
        self._lock = threading.Lock()
        self._holders: Counter[Path] = Counter()
        self._leaving: set[Path] = set()
        found: list[RegisteredAdapter] = [*_uploaded(uploads), *shared_adapters(shared)]
        self._adapters = {(one.owner, one.name): one for one in found}

    def seen_by(self, tenant: str) -> list[RegisteredAdapter]:
        """The adapters that the tenant may use: its own, then the shared ones."""
        self._rescan()
        with self._lock:
            seen = [one for (owner, _), one in self._adapters.items() if owner in (tenant, SHARED)]
        return sorted(seen, key=lambda one: (one.is_shared, one.name))

    def find(self, tenant: str, name: str, param: str | None = None) -> RegisteredAdapter:
        """The adapter of this name for the tenant: its own, else a shared one."""
        self._rescan()
        with self._lock:
            found = self._adapters.get((tenant, name)) or self._adapters.get((SHARED, name))
        if found is None:
            known = ", ".join(one.name for one in self.seen_by(tenant)[:20]) or "none"
            message = f"no adapter {name!r}; upload it, or use one that is there (yours and shared: {known})"
            raise ApiError(404, message, param=param, code="adapter_not_found")
        return found

    @contextmanager
    def hold(self, tenant: str, names: Iterable[str], param: str) -> Iterator[list[RegisteredAdapter]]:
        """Hold these adapters: their files are not deleted within the block."""
        held: list[RegisteredAdapter] = []
        try:
            for number, name in enumerate(names):
                held.append(self._held(tenant, name, f"{param}.{number}.name"))
            yield held
        finally:
            for adapter in held:
                self._release(adapter.path)

    def add(self, tenant: str, name: str, file: BinaryIO, *, replaces: bool = False) -> RegisteredAdapter:
        """Read, check and store an uploaded file; a rejected file leaves nothing behind.

        With `replaces` it takes the place of one of this name; requests that hold that one can finish.
        """
        _check_name(name)
        self._check_room(tenant, name, replaces)
        folder = self._uploads / tenant
        folder.mkdir(parents=True, exist_ok=True)
        staged, digest = _written(file, folder)
        try:
            self._check_content(staged, name)
            return self._keep(tenant, name, staged, folder / f"{name}.{digest}{SUFFIX}", replaces)
        except BaseException:
            with suppress(OSError):
                staged.unlink()
            raise

    def own(self, tenant: str, name: str) -> RegisteredAdapter:
        """The tenant's own adapter of this name."""
        adapter = self.find(tenant, name)
        if adapter.is_shared:
            message = f"{name!r} is shared by all tenants; only the operator can change it"
            raise ApiError(403, message, param="name", code="adapter_is_shared")
        return adapter

    def mark_pinned(self, tenant: str, name: str, *, is_pinned: bool) -> RegisteredAdapter:
        """Note whether the adapter is pinned, of which a tenant may have `MAX_PINNED`."""
        adapter = self.own(tenant, name)
        with self._lock:
            num_pinned = sum(one.is_pinned for (owner, _), one in self._adapters.items() if owner == tenant)
            if is_pinned and not adapter.is_pinned and num_pinned >= MAX_PINNED:
                raise ApiError(403, f"you have pinned {num_pinned} adapters; unpin one first", code="too_many_pinned")
            marked = self._adapters[tenant, name] = replace(adapter, is_pinned=is_pinned)
        return marked

    def remove(self, tenant: str, name: str) -> RegisteredAdapter:
        """Remove the tenant's adapter from the registry; requests that hold it can finish."""
        adapter = self.own(tenant, name)
        with self._lock:
            self._adapters.pop((tenant, name), None)
            self._leaving.add(adapter.path)
        self._drop_unheld(adapter.path)
        return adapter

    def _rescan(self) -> None:
        """Look for new, changed and removed files in the operator's folder, at most every `SCAN_S`."""
        with self._lock:
            if self._shared is None or time.monotonic() - self._scanned_s < SCAN_S:
                return
            self._scanned_s = time.monotonic()
            found = {(SHARED, one.name): one for one in _readable(self._shared)}
            gone = [one for key, one in self._adapters.items() if one.is_shared and found.get(key) != one]
            self._adapters = {key: one for key, one in self._adapters.items() if one not in gone} | found
        for adapter in gone:
            self._forget(str(adapter.path))

    def _held(self, tenant: str, name: str, param: str) -> RegisteredAdapter:
        while True:
            adapter = self.find(tenant, name, param)
            with self._lock:
                if self._adapters.get((adapter.owner, name)) is adapter:  # not deleted since
                    self._holders[adapter.path] += 1
                    return adapter

    def _release(self, path: Path) -> None:
        with self._lock:
            self._holders[path] -= 1
            if not self._holders[path]:
                del self._holders[path]
        self._drop_unheld(path)

    def _drop_unheld(self, path: Path) -> None:
        with self._lock:
            if path not in self._leaving or path in self._holders:
                return
            self._leaving.remove(path)
            path.unlink(missing_ok=True)
        self._forget(str(path))

    def _check_room(self, tenant: str, name: str, replaces: bool) -> None:
        with self._lock:
            if (tenant, name) in self._adapters:
                if replaces:
                    return
                raise _taken(name)
            num_own = sum(owner == tenant for owner, _ in self._adapters)
        if num_own >= self._max_adapters:
            message = f"you have {num_own} adapters, which is the limit; delete one first"
            raise ApiError(403, message, code="too_many_adapters")

    def _check_content(self, staged: Path, name: str) -> None:
        try:
            read_lora(staged, self._targets, name)
        except BadInput as problem:  # in the words of the loader, but with the name the client knows
            message = str(problem).replace(str(staged), name)
            raise ApiError(400, message, param="file", code="invalid_adapter") from problem

    def _keep(self, tenant: str, name: str, staged: Path, path: Path, replaces: bool) -> RegisteredAdapter:
        with self._lock:
            old = self._adapters.get((tenant, name))
            if old is not None and not replaces:  # since the name was checked
                raise _taken(name)
            if old is not None and old.path != path:
                self._leaving.add(old.path)
            self._leaving.discard(path)  # the same bytes again, while requests still hold them
            staged.replace(path)
            _sync(path)
            adapter = self._adapters[tenant, name] = _adapter(name, tenant, path)
        if old is not None:
            self._drop_unheld(old.path)
        return adapter


def _sync(path: Path) -> None:
    """Sync the folder, so that the name of a new file survives a power failure."""
    try:
        sync_folder(path.parent)
    except OSError as error:
        found = f"{error.strerror}: it is unknown whether this adapter is there after a restart"
        raise OutputFailed(f"{found}; upload it again") from error


def _check_name(name: str) -> None:
    """Names become parts of paths."""
    if not re.fullmatch(NAME, name):
        message = (
            "an adapter's name has letters, digits, - and _, begins with a letter or digit, and is at most 64 long"
        )
        raise ApiError(400, message, param="name", code="invalid_name")


def _taken(name: str) -> ApiError:
    message = f"an adapter {name!r} is there already; delete it first, or choose another name"
    return ApiError(409, message, param="name", code="adapter_exists", headers=DO_NOT_RETRY)


def _adapter(name: str, owner: str, path: Path) -> RegisteredAdapter:
    facts = path.stat()
    return RegisteredAdapter(name, owner, path, facts.st_size, facts.st_mtime)


def _written(file: BinaryIO, folder: Path) -> tuple[Path, str]:
    """Write the file to a temporary name with fsync; returns the path and the digest."""
    digest = hashlib.sha256()
    with NamedTemporaryFile(dir=folder, prefix=INCOMING, delete=False) as staged:
        try:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
                staged.write(chunk)
            staged.flush()
            os.fsync(staged.fileno())
        except BaseException:
            Path(staged.name).unlink(missing_ok=True)
            raise
    return Path(staged.name), digest.hexdigest()[:16]


def _uploaded(uploads: Path) -> Iterator[RegisteredAdapter]:
    """Adapters from earlier runs. Old unfinished files are deleted; recent ones may belong to another server."""
    for path in sorted(uploads.glob("*/*")) + sorted(uploads.glob(f"*/{INCOMING}*")):
        if path.name.startswith(INCOMING):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > UNFINISHED_S:
                    path.unlink(missing_ok=True)
        elif match := ON_DISK.fullmatch(path.name):
            yield _adapter(match[1], path.parent.name, path)


def shared_adapters(folder: Path | None) -> list[RegisteredAdapter]:
    """The LoRAs of an operator's folder. Their content is read when a request names them."""
    if folder is None:
        return []
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder; give one with LoRAs in the safetensors format")
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    for path in paths:
        if not re.fullmatch(NAME, path.stem):
            raise BadInput(f"{path} cannot be named in requests; use letters, digits, - and _ for its name")
    return [_adapter(path.stem, SHARED, path.resolve()) for path in paths]


def _readable(folder: Path) -> list[RegisteredAdapter]:
    """Those of the folder whose names requests can give; nothing while the folder cannot be read."""
    with suppress(OSError):
        named = [path for path in sorted(folder.glob(f"*{SUFFIX}")) if re.fullmatch(NAME, path.stem)]
        return [_adapter(path.stem, SHARED, path.resolve()) for path in named]
    return []
