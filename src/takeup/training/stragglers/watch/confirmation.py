"""Pause a job at the same call on all ranks, test every rank and link, and resume.

How it works. Ranks report how often they have made the call that marks iterations. Then they are requested to stop
before the call two after the highest count. If a rank has already passed it, all resume, and a later call is chosen.
The lease that keeps ranks paused is short and renewed by this process; so if it is killed, or a rank dies, the other
ranks resume by themselves.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from takeup.core.files import write_atomically
from takeup.training.stragglers.contract import Confirmation, Pair
from takeup.training.stragglers.watch.ring import HeaderWord
from takeup.training.stragglers.watch.ring_reader import RingReader

LEASE_NS = 2_000_000_000
LOOK_EVERY_S = 0.005
NUM_AHEAD = (2, 4, 8)  # calls, in successive attempts
SETTLE_S = 0.1
NEVER = 1 << 60
BUSY_SHARE = 0.2
CLEARLY_SLOW_LINK = 3.0  # also required when a rank is slow, as its tests delay its neighbours
NUM_AGAIN = 2  # extra tests of links that are not clearly slow
SLOW_RANK, SLOW_LINK = 1.3, 1.6  # times the median; single machines are noisy
CLEARLY_SLOW_RANK = 1.5  # required when a link is clearly slow
MATRIX, COMPUTE_S, LONG_COMPUTE_S = 256, 0.15, 0.45
MESSAGE_BYTES, NUM_REPEATS = 1 << 20, 5
Anchor = tuple[int, int, int]


class PauseController:
    """Pauses of the ranks whose rings are in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._number = 0
        self._task = 0
        self._standing: Mapping[int, RingReader] = {}

    def confirm(
        self, readers: Mapping[int, RingReader], anchors: Mapping[int, Anchor], passes: Sequence[Sequence[Pair]]
    ) -> Confirmation:
        """Pause, test all ranks, then links in these passes, and resume."""
        if not anchors or set(anchors) != set(readers):
            return Confirmation({}, {}, problem="the iterations of some ranks are not known yet")
        if any(reader.path is None for reader in readers.values()):
            return Confirmation({}, {}, problem="ranks of other machines cannot be paused")
        start_s = time.monotonic()
        try:
            with self._stopped(readers, anchors):
                found = self._tested(readers, passes)
        except _PauseFailed as failed:
            return Confirmation({}, {}, time.monotonic() - start_s, str(failed))
        return replace(found, seconds=time.monotonic() - start_s)

    # Stopping ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def _stopped(self, readers: Mapping[int, RingReader], anchors: Mapping[int, Anchor]) -> Iterator[None]:
        self._standing = readers
        try:
            for num_ahead in NUM_AHEAD:
                if self._stop(readers, anchors, num_ahead):
                    yield
                    return
                self._go_on(readers)
            raise _PauseFailed("ranks passed the chosen moment each time")
        finally:
            self._go_on(readers)

    def _stop(self, readers: Mapping[int, RingReader], anchors: Mapping[int, Anchor], num_ahead: int) -> bool:
        """Request a stop; True if all ranks are now paused before the same call."""
        self._number += 1
        for rank, reader in readers.items():
            for word, value in zip(
                (HeaderWord.STOP_OPERATION, HeaderWord.STOP_GROUP, HeaderWord.STOP_SIZE), anchors[rank], strict=True
            ):
                reader.ask(word, value)
            reader.ask(HeaderWord.STOP_SEEN, 0)
            reader.ask(HeaderWord.STOP_COUNT, NEVER)
        self._renew()
        for reader in readers.values():
            reader.ask(HeaderWord.STOP, self._number)
        self._wait(readers, lambda reader: reader.word(HeaderWord.STOP_SEEN) > 0, 10.0, "made no call")
        moment = max(reader.word(HeaderWord.STOP_SEEN) for reader in readers.values()) + num_ahead
        for reader in readers.values():
            reader.ask(HeaderWord.STOP_COUNT, moment)
        self._wait(readers, lambda reader: reader.word(HeaderWord.STOP_SEEN) >= moment, 20.0, "did not stop")
        time.sleep(SETTLE_S)  # a rank that reached the call is paused by now, unless the request was late
        return all(reader.word(HeaderWord.STOPPED) == self._number for reader in readers.values())

    def _go_on(self, readers: Mapping[int, RingReader]) -> None:
        for reader in readers.values():
            reader.ask(HeaderWord.STOP, 0)

    def _renew(self) -> None:
        until_ns = time.monotonic_ns() + LEASE_NS
        for reader in self._standing.values():
            reader.ask(HeaderWord.LEASE_UNTIL_NS, until_ns)

    def _wait(
        self, readers: Mapping[int, RingReader], done: Callable[[RingReader], bool], limit_s: float, problem: str
    ) -> None:
        until_s = time.monotonic() + limit_s
        while not all(map(done, readers.values())):
            for rank, reader in self._standing.items():
                if not _is_alive(reader.word(HeaderWord.PID)):
                    raise _PauseFailed(f"rank {rank} has ended")
                if rank in readers and time.monotonic() > until_s and not done(reader):
                    raise _PauseFailed(f"rank {rank} {problem}")
            self._renew()
            time.sleep(LOOK_EVERY_S)

    # Testing ----------------------------------------------------------------------------------------------------------

    def _tested(self, readers: Mapping[int, RingReader], passes: Sequence[Sequence[Pair]]) -> Confirmation:
        """Test everything, then retest each slow rank or link alone, to exclude interference."""
        computed = self._compute(_waves(readers))
        if slow := evaluate_tests(computed, {}, 0.0).slow_ranks:
            again = self._compute(({rank: readers[rank]} for rank in slow), LONG_COMPUTE_S)
            computed = {
                rank: min(each, again.get(rank, each), key=itemgetter("wall_s")) for rank, each in computed.items()
            }
        carried = self._carry(readers, passes) if len(readers) > 1 else {}
        for most in (math.inf, *[CLEARLY_SLOW_LINK] * NUM_AGAIN):  # clearly slow links are tested only twice
            slow_links = evaluate_tests(computed, carried, 0.0).slow_links
            if doubtful := [[pair] for pair, factor in slow_links.items() if factor < most]:
                again = self._carry(readers, doubtful)
                carried = {rank: _faster(each, again[rank]) for rank, each in carried.items()}
        return evaluate_tests(computed, carried, 0.0)

    def _compute(
        self, waves: Iterable[Mapping[int, RingReader]], seconds: float = COMPUTE_S
    ) -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        for some in waves:
            found |= self._test(some, {"kind": "compute", "size": MATRIX, "seconds": seconds})
        return found

    def _carry(self, readers: Mapping[int, RingReader], passes: Sequence[Sequence[Pair]]) -> dict[int, dict[str, Any]]:
        links = {"kind": "links", "passes": passes, "size_bytes": MESSAGE_BYTES, "repeats": NUM_REPEATS}
        return self._test(readers, links)

    def _test(self, readers: Mapping[int, RingReader], asked: dict[str, Any]) -> dict[int, dict[str, Any]]:
        """Run one test on these ranks and return their results."""
        self._task += 1
        path = self._folder / f"task-{self._task}.json"
        write_atomically(path, json.dumps({**asked, "task": self._task}))
        for reader in readers.values():
            reader.ask(HeaderWord.TASK, self._task)
        self._wait(
            readers, lambda reader: reader.word(HeaderWord.TASK_DONE) == self._task, 15.0, "did not end its test"
        )
        found = {rank: self._result(rank) for rank in readers}
        path.unlink()
        return found

    def _result(self, rank: int) -> dict[str, Any]:
        path = self._folder / f"result-{self._task}-{rank}.json"
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        path.unlink()
        if "error" in found:
            raise _PauseFailed(f"the test on rank {rank} failed: {found['error']}")
        return found


def _waves(readers: Mapping[int, RingReader]) -> Iterator[dict[int, RingReader]]:
    """Batches of ranks to test concurrently: fewer than cores, or they would slow each other down."""
    ranks, number = sorted(readers), max(1, (os.cpu_count() or 1) - 1)
    for first in range(0, len(ranks), number):
        yield {rank: readers[rank] for rank in ranks[first : first + number]}


class _PauseFailed(Exception):
    """Why a pause failed."""


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with suppress(OSError, IndexError):  # a zombie has ended but was not reaped yet
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return True


def _faster(found: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, Any]:
    """The shorter time of every link of a rank."""
    return {
        "links_s": {peer: min(time_s, again["links_s"].get(peer, time_s)) for peer, time_s in found["links_s"].items()}
    }


def evaluate_tests(
    computed: Mapping[int, Mapping[str, Any]], carried: Mapping[int, Mapping[str, Any]], seconds: float
) -> Confirmation:
    """Slow ranks, and slow links without a slow endpoint; thresholds rise when the other kind is slow."""
    links_s: dict[Pair, float] = {}
    for rank, found in carried.items():
        for peer, time_s in found["links_s"].items():
            pair = min(rank, int(peer)), max(rank, int(peer))
            links_s[pair] = max(time_s, links_s.get(pair, 0.0))
    are_clear = bool(_outliers(links_s, CLEARLY_SLOW_LINK))
    slow_ranks = _outliers(_times_s(computed), CLEARLY_SLOW_RANK if are_clear else SLOW_RANK)
    outliers = _outliers(links_s, CLEARLY_SLOW_LINK if slow_ranks else SLOW_LINK)
    slow_links = {pair: factor for pair, factor in outliers.items() if not set(pair) & set(slow_ranks)}
    return Confirmation(slow_ranks, slow_links, seconds)


def _times_s(computed: Mapping[int, Mapping[str, Any]]) -> dict[int, float]:
    """Test durations; run-queue waits are excluded if most ranks have them, as they then do not distinguish ranks."""
    shares = [float(found.get("waited_s", 0.0)) / float(found["wall_s"]) for found in computed.values()]
    is_busy = median(shares) > BUSY_SHARE
    return {
        rank: float(found["wall_s"]) - is_busy * float(found.get("waited_s", 0.0)) for rank, found in computed.items()
    }


def _outliers(times_s: Mapping[Any, float], factor: float) -> dict[Any, float]:
    """Entries that exceed `factor` times the median of the others, with their ratio to it."""
    found = {}
    for key, time_s in times_s.items():
        others = [other_s for other, other_s in times_s.items() if other != key]
        if others and time_s > factor * median(others):
            found[key] = time_s / median(others)
    return found
