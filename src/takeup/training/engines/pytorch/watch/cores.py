"""How long ranks were ready to run but had no core, as the kernel counts it; by iteration."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.training.engines.pytorch.watch.quotas import control_group, throttled_ns
from takeup.training.engines.pytorch.watch.ring import Word

__all__ = ["Cores", "Usual", "note_waiting", "waiting_ns"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
NUM_BEFORE = 32  # iterations that stand for before
NUM_KEPT = 2_000  # looks
NUM_USUAL = 4_096  # iterations that say how long one usually takes
NOTABLE = 1.25  # times that; what is usual is not known better where load comes and goes


def waiting_ns(process: int) -> int:
    """How long all threads of a process have waited for a core since they began; 0 where that is not known."""
    total = 0
    with suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError, IndexError, ValueError):  # a thread may end meanwhile
                total += int((thread / "schedstat").read_bytes().split()[1])
    return total


def note_waiting(readers: Mapping[int, Any]) -> None:
    """Write into the rings of ranks of this machine how long they have waited.

    A rank that has spent a quota of its own waits, too, but not for what others do: while it does, nothing is added.
    """
    here = [reader for reader in readers.values() if reader.path is not None]
    groups = [control_group(reader.word(Word.PID)) for reader in here]
    for reader, group in zip(here, groups, strict=True):
        own_quota_ns = throttled_ns(group) if groups.count(group) == 1 else 0
        more_ns = _grown(reader, Word.DELAYED_NS, waiting_ns(reader.word(Word.PID)))
        is_throttled = _grown(reader, Word.THROTTLED_NS, own_quota_ns) > 0
        reader.ask(Word.WAITED_NS, reader.word(Word.WAITED_NS) + (0 if is_throttled else more_ns))


def _grown(reader: Any, place: int, now_ns: int) -> int:
    """By how much a count grew since it was last noted; it falls when threads end."""
    before_ns: int = reader.word(place)
    reader.ask(place, now_ns)
    return max(0, now_ns - before_ns)


@dataclass(slots=True)
class Cores:
    """What was read at every look: in which iteration ranks were, and how long each had waited."""

    _seen: deque[tuple[int, dict[int, int]]] = field(default_factory=lambda: deque(maxlen=NUM_KEPT))

    def look(self, num_iterations: int, readers: Mapping[int, Any]) -> None:
        """Read once more; what ranks waited before iterations could be counted is that of starting, and forgotten."""
        if num_iterations == 0:
            self._seen.clear()
        if not self._seen or num_iterations > self._seen[-1][0]:
            self._seen.append((num_iterations, {rank: each.word(Word.WAITED_NS) for rank, each in readers.items()}))

    def is_too_soon(self, began: int) -> bool:
        """Whether there was but one look since this iteration, so that what lies before and after it is not told."""
        return len(self._seen) > 1 and sum(number >= began for number, _ in self._seen) == 1

    def more_waiting_s(self, began: int) -> dict[int, float]:
        """By rank: how much longer it waits in an iteration since this one than before; medians, as bursts happen."""
        numbers = np.array([number for number, _ in self._seen])
        if not len(numbers) or not numbers[0] < began < numbers[-1]:
            return {}
        waited_s = {rank: np.array([each.get(rank, 0) for _, each in self._seen]) / 1e9 for rank in self._seen[-1][1]}
        return {rank: _more_s(numbers, each_s, began) for rank, each_s in waited_s.items()}


@dataclass(slots=True)
class Usual:
    """How long iterations usually take, over many of them: where cores are always short, bursts of it are no news."""

    _times_s: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_USUAL))
    _num_seen: int = 0

    def look(self, num_iterations: int, latest_s: Sequence[float]) -> None:
        """Take in those that are new, of which the latest are given."""
        num_new = min(num_iterations - self._num_seen, len(latest_s))
        self._num_seen = num_iterations
        self._times_s.extend(list(latest_s)[len(latest_s) - num_new :])

    def is_exceeded_by(self, taken_s: float) -> bool:
        """Whether iterations that take so long are notably slower."""
        return not self._times_s or taken_s >= NOTABLE * median(self._times_s)


def _more_s(at: Ints, waited_s: Floats, began: int) -> float:
    """As if there had been a look when it began: until then ranks waited as before, and beyond that since then.

    Looks may be far apart where cores are short, and then one that lies across tells nothing by itself.
    """
    place = int(np.searchsorted(at, began, side="right")) - 1
    last = int(at[place])
    before_s = _usual_rate(at[: place + 1], waited_s[: place + 1], (last - NUM_BEFORE, last)) if place else 0.0
    then_s = min(waited_s[place] + before_s * (began - last), waited_s[place + 1])
    since, since_s = np.append(began, at[place + 1 :]), np.append(then_s, waited_s[place + 1 :])
    return _usual_rate(since, since_s, (began, int(at[-1]))) - before_s


def _usual_rate(at: Ints, values: Floats, window: tuple[int, int]) -> float:
    """The median growth of values in a step, of the steps in this window; what lies between two of them is even."""
    shares = np.diff(np.clip(at, *window))
    rates = np.diff(values) / np.diff(at)
    order = np.argsort(rates)
    half = np.searchsorted(np.cumsum(shares[order]), shares.sum() / 2)
    return float(rates[order][half])
