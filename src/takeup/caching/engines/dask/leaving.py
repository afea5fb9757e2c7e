"""Values that are about to be freed: their last reader has run here, and the scheduler's message is in flight.

Spilling them would write data that is dropped a few milliseconds later. So they count as freed already, up to a bound
in bytes; a value that the scheduler's message did not free is still needed and counts as stored again.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable


class PendingFrees:
    """The values of one worker that are about to be freed, oldest first, at most `most_bytes` in total."""

    def __init__(self, most_bytes: float) -> None:
        self.most_bytes = most_bytes
        self.total_bytes = 0.0
        self._values: dict[Hashable, tuple[Hashable, float]] = {}  # the last reader, and the size

    def __contains__(self, key: Hashable) -> bool:
        return key in self._values

    def __len__(self) -> int:
        return len(self._values)

    def add(self, key: Hashable, reader: Hashable, size_bytes: float) -> list[Hashable]:
        """The last reader of the value has finished. Returns the oldest values, removed to stay within `most_bytes`."""
        self.discard(key)
        self._values[key] = reader, size_bytes
        self.total_bytes += size_bytes
        too_many = []
        while self.total_bytes > self.most_bytes:
            too_many.append(next(iter(self._values)))
            self.discard(too_many[-1])
        return too_many

    def discard(self, key: Hashable) -> None:
        """The value was removed, or has a reader again."""
        _, size_bytes = self._values.pop(key, (None, 0.0))
        self.total_bytes -= size_bytes

    def confirm(self, readers: Collection[Hashable]) -> list[Hashable]:
        """The scheduler confirmed that these readers finished: remove and return the values that it did not free."""
        kept = [key for key, (reader, _) in self._values.items() if reader in readers]
        for key in kept:
            self.discard(key)
        return kept
