"""Templates on disk: a folder of files for every owner, with a quota per owner and a total quota."""

import json
import os
import secrets
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any

import numpy as np
import torch

from takeup.core.files import write_atomically
from takeup.errors import BadInput, OutputFailed
from takeup.serving.contract import CachePolicy
from takeup.serving.editing.templates.packing import PackedPage, PackedTensor
from takeup.serving.editing.templates.template import Template, TemplateKey, digest_of, template_of

# A template as one file: pages in the order of the steps, each one sequential, aligned, checksummed; then an index
#
# The index is last, and a short tail after it holds its offset. A file without its tail is incomplete. Reading
# memory-maps the file and verifies all pages; repeated reads hit the page cache.

MAGIC = b"takeup template 2"
TAIL = struct.Struct("<QQI17s")
ALIGNMENT = 4096
UNFINISHED = ".template."
"""How names of files begin that are being written."""
DTYPES = {str(one): one for one in (torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8)}


def write_template(path: Path, template: Template, key: str) -> None:
    """Write atomically."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=path.parent, prefix=UNFINISHED, delete=False) as file:
            try:
                _write(file, template, key)
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputFailed(f"cannot keep a template at {path}: {reason}; edits go on without it, make room") from error


def read_template(path: Path, key: str) -> Template:
    """Read a template; rejects an incomplete or damaged file, or one of another key."""
    try:
        size_bytes = path.stat().st_size
        mapped = np.memmap(path, np.uint8, mode="c") if size_bytes else np.zeros(0, np.uint8)
    except OSError as error:
        raise BadInput(f"template {path} cannot be read: {error.strerror}; it will be made again") from error
    index = _index(path, torch.from_numpy(mapped))
    if index["key"] != key:
        raise BadInput(f"template {path} was made for another request; it will be made again")
    data = torch.from_numpy(mapped)
    pages = tuple(_page(path, data, entry) for entry in index["pages"])
    known = torch.tensor(index["known"], dtype=torch.bool).view(index["grid"])
    return Template(pages, known, index["error"], index["raw_bytes"])


# Writing ----------------------------------------------------------------------------------------------------------


def _write(file: IO[bytes], template: Template, key: str) -> None:
    pages = [_write_page(file, step, page) for step, page in enumerate(template.pages)]
    index = {
        "key": key,
        "error": template.error,
        "raw_bytes": template.raw_bytes,
        "grid": list(template.known.shape),
        "known": template.known.flatten().int().tolist(),
        "pages": pages,
    }
    _align(file)
    start, text = file.tell(), json.dumps(index).encode()
    file.write(text)
    file.write(TAIL.pack(start, len(text), zlib.crc32(text), MAGIC))


def _write_page(file: IO[bytes], step: int, page: PackedPage) -> dict[str, Any]:
    _align(file)
    start, checksum, tensors = file.tell(), 0, []
    for name, packed in page.items():
        offsets = []
        for part in (packed.values, packed.scales):
            data = b"" if part is None else _bytes_of(part)
            offsets.append([file.tell() - start, len(data), "" if part is None else str(part.dtype)])
            data += bytes(-len(data) % 64)
            file.write(data)
            checksum = zlib.crc32(data, checksum)
        shapes = [list(packed.values.shape), None if packed.scales is None else list(packed.scales.shape)]
        tensors.append([name, offsets, shapes, list(packed.shape), str(packed.dtype), packed.bits, packed.is_change])
    return {"step": step, "start": start, "size": file.tell() - start, "checksum": checksum, "tensors": tensors}


def _bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _align(file: IO[bytes]) -> None:
    file.write(bytes(-file.tell() % ALIGNMENT))


# Reading ----------------------------------------------------------------------------------------------------------


def _index(path: Path, data: torch.Tensor) -> dict[str, Any]:
    tail = data[-TAIL.size :].numpy().tobytes()
    if len(tail) == TAIL.size:
        start, length, checksum, magic = TAIL.unpack(tail)
        text = data[start : start + length].numpy().tobytes() if magic == MAGIC else b""
        if text and zlib.crc32(text) == checksum:
            index: dict[str, Any] = json.loads(text)
            return index
    raise BadInput(f"template {path} is not complete or damaged; it will be made again")


def _page(path: Path, data: torch.Tensor, entry: dict[str, Any]) -> PackedPage:
    part = data[entry["start"] : entry["start"] + entry["size"]]
    if zlib.crc32(part.numpy().data) != entry["checksum"]:
        raise BadInput(f"step {entry['step']} of template {path} is damaged; it will be made again")
    return {name: _tensor(part, *places) for name, *places in entry["tensors"]}


def _tensor(page: torch.Tensor, offsets: Any, shapes: Any, shape: list[int], dtype: str, *how: Any) -> PackedTensor:
    parts = [
        page[start : start + size].view(DTYPES[kind]).view(form) if kind else None
        for (start, size, kind), form in zip(offsets, shapes, strict=True)
    ]
    assert parts[0] is not None
    return PackedTensor(parts[0], parts[1], tuple(shape), DTYPES[dtype], *how)


# Templates on disk: a folder of files for every owner, with a quota per owner and a total quota -----------------------
#
# Several processes may share the folder: files are written atomically, a file deleted while in use stays mapped, and
# changes by other processes are noticed when space is freed. Forgetting an image is recorded on disk as a new
# *generation*, so that all processes notice it.

SUFFIX = ".template"
FORGOTTEN = ".forgotten"
UNFINISHED_S, FORGOTTEN_S = 3600.0, 7 * 86400.0
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
        if time.monotonic() - self._swept_s > UNFINISHED_S:
            self._sweep()

    def _sweep(self) -> None:
        """Delete old temporary files and old records of forgotten images; younger ones may be in use."""
        self._swept_s = time.monotonic()
        old = [(path, UNFINISHED_S) for path in self._folder.glob(f"*/{UNFINISHED}*")]
        old += [(path, FORGOTTEN_S) for path in self._folder.glob(f"{FORGOTTEN}/*")]
        for path, most_s in old:
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > most_s:
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
