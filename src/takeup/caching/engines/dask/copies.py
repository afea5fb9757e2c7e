"""Clean copies: files of values that were read back, kept so that evicting them again writes nothing.

The stock buffer removes the file when it reads a value back, so a value is written at every eviction.
Values are immutable, so the file stays valid: it is hidden from the buffer (which believes a key is in one place only)
and shown again when the value is evicted. A copy belongs to one object in memory; it is removed when the key is deleted
or refers to another object. So copies never exceed the bytes in memory, and `max-spill` counts them too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dask.typing import Key
from distributed.spill import Slow, SpilledSize


@dataclass(frozen=True, slots=True)
class CleanCopy:
    """A hidden file, its size, and which object it is a copy of."""

    file_name: str
    size: SpilledSize
    value_id: int


class CleanCopies:
    """The hidden files of one worker, oldest first."""

    def __init__(self, slow: Slow, most_bytes: float) -> None:
        self.slow = slow
        self.most_bytes = most_bytes
        self.total_bytes = 0
        self._copies: dict[Key, CleanCopy] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._copies

    def __len__(self) -> int:
        return len(self._copies)

    def hide(self, key: Key, value: object) -> None:
        """The value was read back: hide its file from the buffer. `value` must stay alive as long as its key."""
        self.forget(key)
        size = self.slow.weight_by_key.pop(key)
        self.slow.total_weight -= size
        file_name = self.slow.d.filenames.pop(key)  # type: ignore[attr-defined]
        self._copies[key] = CleanCopy(file_name, size, id(value))
        self.total_bytes += size.disk
        self.shrink_to(self.most_bytes)

    def show(self, key: Key, value: object) -> int:
        """The value is evicted: show its file to the buffer again. Returns the bytes not written, 0 without a copy."""
        copy = self._copies.get(key)
        if copy is None or copy.value_id != id(value):
            return 0
        del self._copies[key]
        self.total_bytes -= copy.size.disk
        self.slow.weight_by_key[key] = copy.size
        self.slow.total_weight += copy.size
        self.slow.d.filenames[key] = copy.file_name  # type: ignore[attr-defined]
        return copy.size.disk

    def forget(self, key: Key) -> None:
        """Remove the copy of this key, if there is one."""
        copy = self._copies.pop(key, None)
        if copy is not None:
            self.total_bytes -= copy.size.disk
            (Path(self.slow.d.directory) / copy.file_name).unlink()  # type: ignore[attr-defined]

    def shrink_to(self, most_bytes: float) -> None:
        """Remove the oldest copies until the others fit."""
        while self._copies and self.total_bytes > most_bytes:
            self.forget(next(iter(self._copies)))
