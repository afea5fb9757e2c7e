"""A template as one file: pages in the order of the steps, each one sequential, aligned, checksummed; then an index.

The index is last, and a short tail after it holds its offset. A file without its tail is incomplete. Reading
memory-maps the file and verifies all pages; repeated reads hit the page cache.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Any

import numpy as np
import torch

from takeup.errors import BadInput, OutputFailed
from takeup.serving.engines.templates.packing import PackedPage, PackedTensor
from takeup.serving.engines.templates.templates import Template

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
