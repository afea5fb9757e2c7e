"""Why a rank is slow or pauses: the time it spends loading, collecting garbage, saving, or throttled.

In the rank, hooks that need no change to the script add up these times and write them into the header of its ring. In
the watcher, what grows more on the slow rank than on the others, by at least half of its excess, is the cause.
"""

import gc
import shutil
import subprocess
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from statistics import median
from time import monotonic_ns
from typing import Any

from takeup.training.stragglers.contract import SlowdownEvent, Suspect
from takeup.training.stragglers.watch.ring import HeaderWord

CAUSES = {
    HeaderWord.LOADING_NS: "in its data loader",
    HeaderWord.GARBAGE_NS: "in garbage collection",
    HeaderWord.SAVING_NS: "while it saves",
    HeaderWord.THROTTLED_NS: "at its CPU quota",
}

# In the rank ----------------------------------------------------------------------------------------------------------


class RankTimes:
    """Adds up the times of one rank; `ring` returns its ring, once there is one."""

    def __init__(self, ring: Callable[[], Any]) -> None:
        self._ring = ring
        self._totals = dict.fromkeys(CAUSES, 0)
        self._collecting_since_ns = 0

    @contextmanager
    def timed(self, word: int) -> Iterator[None]:
        """Add the time inside to this word of the header."""
        began_ns = monotonic_ns()
        try:
            yield
        finally:
            self._add(word, monotonic_ns() - began_ns)

    def _add(self, word: int, lasted_ns: int) -> None:
        self._totals[word] += lasted_ns
        ring = self._ring()
        if ring is not None:
            ring.words[word] = self._totals[word]

    def collected(self, phase: str, _: object) -> None:
        """Time a garbage collection, as a callback of the collector."""
        now_ns = monotonic_ns()
        if phase == "start":
            self._collecting_since_ns = now_ns
        elif self._collecting_since_ns:
            self._add(HeaderWord.GARBAGE_NS, now_ns - self._collecting_since_ns)

    def install(self) -> Callable[[], None]:
        """Time the collector, data loaders and `torch.save`; the returned function ends that."""
        import torch
        from torch.utils.data import dataloader

        iterator: Any = dataloader._BaseDataLoaderIter
        following, saving = iterator.__next__, torch.save

        def load(loading: Any) -> Any:
            with self.timed(HeaderWord.LOADING_NS):
                return following(loading)

        def save(*arguments: Any, **named: Any) -> Any:
            with self.timed(HeaderWord.SAVING_NS):
                return saving(*arguments, **named)

        iterator.__next__, torch.save = load, save
        gc.callbacks.append(self.collected)

        def undo() -> None:
            iterator.__next__, torch.save = following, saving
            with suppress(ValueError):
                gc.callbacks.remove(self.collected)

        return undo


# In the watcher -------------------------------------------------------------------------------------------------------

NUM_SAMPLES, NUM_COMPARED = 2_000, 96
LEAST_EXPLAINED = 0.5  # share of the excess
SLOWED_CLOCK = 0x8 | 0x20 | 0x40 | 0x80  # hardware and thermal slowdowns, power brake


@dataclass(slots=True)
class CauseTimes:
    """Samples of the iteration number and the times of every rank."""

    _seen: deque[tuple[int, dict[int, dict[int, int]]]] = field(default_factory=lambda: deque(maxlen=NUM_SAMPLES))

    def poll(self, num_iterations: int, readers: Mapping[int, Any]) -> None:
        if not self._seen or num_iterations > self._seen[-1][0]:
            times = {rank: {word: each.word(word) for word in CAUSES} for rank, each in readers.items()}
            self._seen.append((num_iterations, times))

    def explained(self, event: SlowdownEvent, slowed_clock: Callable[[int], bool]) -> SlowdownEvent:
        """The event with the causes of its suspects, as far as known; `slowed_clock` is asked about ranks."""
        return replace(event, suspects=tuple(self._explained(each, event, slowed_clock) for each in event.suspects))

    def _explained(self, suspect: Suspect, event: SlowdownEvent, slowed_clock: Callable[[int], bool]) -> Suspect:
        if suspect.kind not in ("compute", "pause") or len(suspect.ranks) != 1:
            return suspect
        excess_s = suspect.excess_s or event.after_s - event.before_s
        more_s = {word: self._more_s(word, suspect.ranks[0]) for word in CAUSES}
        word = max(more_s, key=lambda each: more_s[each])
        if more_s[word] >= LEAST_EXPLAINED * excess_s > 0:
            return replace(suspect, cause=CAUSES[word])
        return replace(suspect, cause="with a slowed clock" if slowed_clock(suspect.ranks[0]) else "")

    def _more_s(self, word: int, rank: int) -> float:
        """Time of a rank per iteration, beyond that of the other ranks, over the latest iterations."""
        since = [each for each in self._seen if each[0] >= self._seen[-1][0] - NUM_COMPARED] if self._seen else []
        if len(since) < 2 or rank not in since[0][1]:
            return 0.0
        (first, before), (last, now) = since[0], since[-1]
        rates_s = {
            each: (now[each][word] - before[each][word]) / (last - first) / 1e9 for each in before if each in now
        }
        others = [rate_s for each, rate_s in rates_s.items() if each != rank]
        return rates_s.get(rank, 0.0) - (median(others) if others else 0.0)


def has_slowed_clock(device: int) -> bool:
    """Whether the driver says that a card of this machine is throttled now; False if it cannot be asked."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return False
    asked = [program, "-i", str(device), "--query-gpu=clocks_throttle_reasons.active", "--format=csv,noheader"]
    with suppress(OSError, ValueError, subprocess.TimeoutExpired):
        return bool(int(subprocess.run(asked, capture_output=True, timeout=5, check=False).stdout, 16) & SLOWED_CLOCK)
    return False
