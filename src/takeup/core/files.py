"""Atomic file writes: a temporary file in the target's folder is synced and renamed; then the folder is synced."""

import os
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from tempfile import NamedTemporaryFile

from takeup.errors import OutputFailed

UNFINISHED, UNFINISHED_S = ".takeup-part", 3600.0


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write `content` to `path`; the old file is replaced only after the new bytes are on disk, and then for good."""
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        _write_and_rename(path, data)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputFailed(f"cannot write {path}: {reason}; nothing was left there, choose another place") from error
    try:
        sync_folder(path.parent)
    except OSError as error:
        found = f"{path} is written, but it is unknown whether it survives a power failure: {error.strerror}"
        raise OutputFailed(f"{found}; check the disk") from error


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk: new files and renames survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@lru_cache(maxsize=256)
def _sweep(folder: Path) -> None:
    """Once for each folder of a process, remove what writers that were killed an hour ago have left."""
    for left in folder.glob(f".*{UNFINISHED}"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > UNFINISHED_S:
                left.unlink()


def _write_and_rename(path: Path, data: bytes) -> None:
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", suffix=UNFINISHED, delete=False) as file:
        temporary = Path(file.name)
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
            file.close()
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
