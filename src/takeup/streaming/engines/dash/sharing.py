"""Processor sharing as arithmetic: round-robin of small quanta over all backlogged senders, at one total rate.

It knows no clock; times are arguments. A link that was late makes up for it, also when the next request follows the
last byte within `pause_s`. Longer idle time, without any backlog, is lost.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Sender = TypeVar("Sender", bound=Hashable)


class ProcessorSharing(Generic[Sender]):
    """Distributes `rate_bytes_per_s` round-robin, `quantum_bytes` at a time."""

    def __init__(self, rate_bytes_per_s: float, quantum_bytes: int, pause_s: float = 0.005) -> None:
        self.rate_bytes_per_s, self.quantum_bytes, self.pause_s = rate_bytes_per_s, quantum_bytes, pause_s
        self._due_s = self._empty_since_s = float("-inf")
        self._owed_bytes: OrderedDict[Sender, int] = OrderedDict()

    @property
    def due_s(self) -> float | None:
        """When the next quantum may be sent; None without backlog."""
        return self._due_s if self._owed_bytes else None

    def enqueue(self, sender: Sender, num_bytes: int, now_s: float) -> None:
        """Add `num_bytes` to the backlog of this sender."""
        if not self._owed_bytes and now_s - self._empty_since_s > self.pause_s:
            self._due_s = max(self._due_s, now_s)
        self._owed_bytes[sender] = self._owed_bytes.get(sender, 0) + num_bytes

    def drop(self, sender: Sender) -> None:
        """Remove a sender and its backlog; its share goes to the others."""
        self._owed_bytes.pop(sender, None)

    def dequeue(self, now_s: float) -> Iterator[tuple[Sender, int]]:
        """The senders and byte counts that may be sent by now, quantum by quantum, in order."""
        while self._owed_bytes and self._due_s <= now_s:
            sender, owed_bytes = self._owed_bytes.popitem(last=False)
            num_bytes = min(self.quantum_bytes, owed_bytes)
            if owed_bytes > num_bytes:
                self._owed_bytes[sender] = owed_bytes - num_bytes
            self._due_s += num_bytes / self.rate_bytes_per_s
            self._empty_since_s = now_s  # if this was the last of all
            yield sender, num_bytes
