"""Run-queue wait of ranks (runnable but without a core), from the kernel's schedstat, per iteration."""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, median_low
from typing import Any

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.training.stragglers.watch.ring import HeaderWord

# CPU-quota throttling time of processes, from the kernel's statistics of their cgroup ---------------------------------

GROUPS = Path("/sys/fs/cgroup")
PROCESSES = Path("/proc")
IN_NS = {"throttled_time": 1, "throttled_usec": 1_000}  # names in cgroup v1 and v2


def control_group(process: int, processes: Path = PROCESSES, groups: Path = GROUPS) -> Path | None:
    """Folder of the cgroup that controls the CPU of a process; None if unknown."""
    with suppress(OSError, ValueError):
        lines = [line.split(":", 2) for line in (processes / str(process) / "cgroup").read_text("utf-8").splitlines()]
        found = {tuple(names.split(",")): place for _, names, place in lines}
        for names in sorted(found, key=lambda names: names == ("",)):  # cgroup v2 has no names, and is tried last
            if "cpu" in names or names == ("",):
                return groups / ",".join(names) / found[names].lstrip("/")
    return None


def throttled_ns(group: Path | None) -> int:
    """Total throttled time of the cgroup in nanoseconds; 0 if there is no quota."""
    if group is not None:
        with suppress(OSError, ValueError):
            for line in (group / "cpu.stat").read_text("ascii").splitlines():
                name, value = line.split()
                if name in IN_NS:
                    return IN_NS[name] * int(value)
    return 0


NUM_BEFORE = 32  # iterations of the baseline
NUM_KEPT = 2_000  # samples
NUM_USUAL = 4_096  # iterations of the long-term median
NOTABLE = 1.25  # times that median; it is no more precise under varying load


def run_queue_wait_ns(process: int) -> int:
    """Total run-queue wait of all threads of a process, in nanoseconds; 0 if unknown."""
    total = 0
    with suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError, IndexError, ValueError):  # a thread may end meanwhile
                total += int((thread / "schedstat").read_bytes().split()[1])
    return total


def record_run_queue_waits(readers: Mapping[int, Any]) -> None:
    """Write the run-queue wait of local ranks into their rings.

    A rank throttled by a CPU quota that only it uses also waits, but not because of other processes: nothing is added.
    """
    here = [reader for reader in readers.values() if reader.path is not None]
    groups = [control_group(reader.word(HeaderWord.PID)) for reader in here]
    for reader, group in zip(here, groups, strict=True):
        own_quota_ns = throttled_ns(group) if groups.count(group) == 1 else 0
        more_ns = _counter_growth(reader, HeaderWord.DELAYED_NS, run_queue_wait_ns(reader.word(HeaderWord.PID)))
        is_throttled = _counter_growth(reader, HeaderWord.THROTTLED_NS, own_quota_ns) > 0
        reader.ask(HeaderWord.WAITED_NS, reader.word(HeaderWord.WAITED_NS) + (0 if is_throttled else more_ns))


def _counter_growth(reader: Any, place: int, now_ns: int) -> int:
    """Store a counter and return its growth, at least 0, as it decreases when threads end."""
    before_ns: int = reader.word(place)
    reader.ask(place, now_ns)
    return max(0, now_ns - before_ns)


@dataclass(slots=True)
class RunQueueWaits:
    """Samples of the iteration number and the accumulated run-queue wait of every rank."""

    _seen: deque[tuple[int, dict[int, int]]] = field(default_factory=lambda: deque(maxlen=NUM_KEPT))

    def poll(self, num_iterations: int, readers: Mapping[int, Any]) -> None:
        """Add a sample; waits from before iterations could be counted belong to startup and are dropped."""
        if num_iterations == 0:
            self._seen.clear()
        if not self._seen or num_iterations > self._seen[-1][0]:
            self._seen.append(
                (num_iterations, {rank: each.word(HeaderWord.WAITED_NS) for rank, each in readers.items()})
            )

    def is_too_soon(self, began: int) -> bool:
        """Whether there is only one sample since this iteration, too few to separate before and after."""
        return len(self._seen) > 1 and sum(number >= began for number, _ in self._seen) == 1

    def more_waiting_s(self, began: int) -> dict[int, float]:
        """By rank: increase of the wait per iteration since this iteration, in seconds; medians, as bursts happen."""
        numbers = np.array([number for number, _ in self._seen])
        if not len(numbers) or not numbers[0] < began < numbers[-1]:
            return {}
        waited_s = {rank: np.array([each.get(rank, 0) for _, each in self._seen]) / 1e9 for rank in self._seen[-1][1]}
        return {rank: _more_s(numbers, each_s, began) for rank, each_s in waited_s.items()}

    def more_than_others_s(self) -> dict[int, float]:
        """By rank: median wait per iteration over the latest samples, beyond that of the median rank."""
        numbers = np.array([number for number, _ in self._seen])
        if len(numbers) < 2:
            return {}
        window = (int(numbers[-1]) - 2 * NUM_BEFORE, int(numbers[-1]))
        waited_s = {rank: np.array([each.get(rank, 0) for _, each in self._seen]) / 1e9 for rank in self._seen[-1][1]}
        rates_s = {rank: _usual_rate(numbers, each_s, window) for rank, each_s in waited_s.items()}
        return {rank: rate_s - median_low(rates_s.values()) for rank, rate_s in rates_s.items()}


@dataclass(slots=True)
class UsualIterationTime:
    """Long-term median iteration time: where cores are always scarce, bursts of waiting are not reported."""

    _times_s: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_USUAL))
    _num_seen: int = 0

    def poll(self, num_iterations: int, latest_s: Sequence[float]) -> None:
        """Add the new iteration times, which are at the end of `latest_s`."""
        num_new = min(num_iterations - self._num_seen, len(latest_s))
        self._num_seen = num_iterations
        self._times_s.extend(list(latest_s)[len(latest_s) - num_new :])

    def is_exceeded_by(self, taken_s: float) -> bool:
        """Whether iterations of `taken_s` are notably slower than usual."""
        return not self._times_s or taken_s >= NOTABLE * median(self._times_s)


def _more_s(at: Ints, waited_s: Floats, began: int) -> float:
    """Rate of waiting since `began` minus the rate before, with an interpolated sample at `began`.

    Samples may be far apart where cores are scarce, so an interval that spans `began` is split there by the old rate.
    """
    place = int(np.searchsorted(at, began, side="right")) - 1
    last = int(at[place])
    before_s = _usual_rate(at[: place + 1], waited_s[: place + 1], (last - NUM_BEFORE, last)) if place else 0.0
    then_s = min(waited_s[place] + before_s * (began - last), waited_s[place + 1])
    since, since_s = np.append(began, at[place + 1 :]), np.append(then_s, waited_s[place + 1 :])
    return _usual_rate(since, since_s, (began, int(at[-1]))) - before_s


def _usual_rate(at: Ints, values: Floats, window: tuple[int, int]) -> float:
    """Median growth of `values` per iteration within the window, assuming constant growth between samples."""
    shares = np.diff(np.clip(at, *window))
    rates = np.diff(values) / np.diff(at)
    order = np.argsort(rates)
    half = np.searchsorted(np.cumsum(shares[order]), shares.sum() / 2)
    return float(rates[order][half])
