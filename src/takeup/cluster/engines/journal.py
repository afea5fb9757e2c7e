"""What a controller does, line by line, on disk before it is done: one that was killed finds its place again.

Every line is a JSON object. A line that was half written when the machine stopped is dropped; what is damaged elsewhere
is left out and counted. A journal belongs to one process at a time.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from takeup.core.files import write_atomically
from takeup.errors import BadInput, OutputFailed

Entry = Mapping[str, Any]

CLAIM_LIMIT_S = 2.0  # a program that a killed controller was about to start holds its lock until it runs
CLAIM_PAUSE_S = 0.02


class Journal:
    """The entries at `path`, oldest first, and a place to write more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_damaged = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = path.with_name(f"{path.name}.lock").open("w", encoding="utf-8")
        except OSError as error:
            raise OutputFailed(f"cannot keep a journal at {path}: {error.strerror}; choose another place") from error
        self._claim()
        self.entries = tuple(self._read())
        self._file = self._open()

    def write(self, entry: Entry, *, is_urgent: bool = True) -> None:
        """Add an entry; an urgent one is on the disk when this returns, others survive the end of this process only."""
        try:
            self._file.write(json.dumps(entry) + "\n")
            self._file.flush()
            if is_urgent:
                os.fsync(self._file.fileno())
        except OSError as error:
            raise OutputFailed(f"cannot write to {self.path}: {error.strerror}; nothing is done unwritten") from error

    def shorten(self, entries: Iterable[Entry]) -> None:
        """Keep nothing but these entries."""
        self._file.close()
        write_atomically(self.path, "".join(f"{json.dumps(entry)}\n" for entry in entries))
        self._file = self._open()

    def close(self) -> None:
        """Let another process have it."""
        self._file.close()
        self._lock.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _claim(self) -> None:
        until_s = time.monotonic() + CLAIM_LIMIT_S
        while not self._is_ours():
            if time.monotonic() >= until_s:
                self._lock.close()
                found = f"another controller writes to {self.path}"
                raise BadInput(f"{found}; stop it first, or give this one its own journal")
            time.sleep(CLAIM_PAUSE_S)

    def _is_ours(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _open(self) -> TextIO:
        return self.path.open("a", encoding="utf-8")

    def _read(self) -> Iterator[Entry]:
        content = self.path.read_bytes() if self.path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self.path, len(whole))  # what follows must begin on a line of its own
            self.num_damaged += 1
        for line in whole.splitlines():
            entry = _parsed(line)
            if entry is None:
                self.num_damaged += 1
            else:
                yield entry


def _parsed(line: bytes) -> Entry | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None
