"""How long ranks were ready to run but had no core, as the kernel counts it; by iteration."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from takeup.training.engines.pytorch.watch.ring import Word

__all__ = ["Cores", "note_waiting", "waiting_ns"]

NUM_BEFORE = 32  # iterations that stand for before
NUM_KEPT = 2_000  # looks


def waiting_ns(process: int) -> int:
    """How long all threads of a process have waited for a core since they began; 0 where that is not known."""
    total = 0
    with suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError, IndexError, ValueError):  # a thread may end meanwhile
                total += int((thread / "schedstat").read_bytes().split()[1])
    return total


def note_waiting(readers: Mapping[int, Any]) -> None:
    """Write into the rings of ranks of this machine how long they have waited."""
    for reader in readers.values():
        if reader.path is not None:
            waited_ns = waiting_ns(reader.word(Word.PID))
            reader.ask(Word.WAITED_NS, max(waited_ns, reader.word(Word.WAITED_NS)))  # threads end, and with them theirs


@dataclass(slots=True)
class Cores:
    """What was read at every look: in which iteration ranks were, and how long each had waited."""

    _seen: deque[tuple[int, dict[int, int]]] = field(default_factory=lambda: deque(maxlen=NUM_KEPT))

    def look(self, num_iterations: int, readers: Mapping[int, Any]) -> None:
        """Read once more."""
        if not self._seen or num_iterations > self._seen[-1][0]:
            self._seen.append((num_iterations, {rank: each.word(Word.WAITED_NS) for rank, each in readers.items()}))

    def more_waiting_s(self, began: int) -> dict[int, float]:
        """By rank: how much longer it waits in an iteration since this one than before."""
        if len(self._seen) < 2:
            return {}
        numbers, waited = zip(*self._seen, strict=True)
        first, last = max(numbers[0], began - NUM_BEFORE), numbers[-1]
        if not first < began < last:
            return {}
        more = {}
        for rank in waited[-1]:
            at = np.interp([first, began, last], numbers, [each.get(rank, 0) for each in waited]) / 1e9
            more[rank] = float((at[2] - at[1]) / (last - began) - (at[1] - at[0]) / (began - first))
        return more
