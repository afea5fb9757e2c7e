"""The reading end of ring buffers: complete rows of one rank, each once and in order, and the logs of all ranks."""

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.errors import BadTrace
from takeup.training.stragglers.contract import CALL, STEP_GROUP, CallLog, Operation
from takeup.training.stragglers.watch import ring

# The reading end of a ring buffer: complete rows, each once, in order -------------------------------------------------

Words = npt.NDArray[np.int64]
COLUMNS = {name: number for number, name in enumerate(CALL.fields or (), start=1)}  # after the number of the row
LAST_OPERATION = int(max(Operation))
MOST_BYTES = 1 << 50


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """Group rank of a rank in a process group, and the group size."""

    place: int
    size: int


@dataclass(slots=True)
class RingReader:
    """Reads the ring of one rank; `num_bad` rows were invalid, `num_lost` were overwritten before they were read."""

    path: Path
    num_bad: int = 0
    num_lost: int = 0
    _words: Words = field(init=False, repr=False)
    _next: int = 0

    def __post_init__(self) -> None:
        self._words = _open(self.path)

    def word(self, place: int) -> int:
        return int(self._words[place])

    def ask(self, place: int, value: int) -> None:
        self._words[place] = value

    @property
    def rank(self) -> int:
        return self.word(ring.HeaderWord.RANK)

    @property
    def places(self) -> dict[int, GroupPosition]:
        """Process groups of this rank, by group ID."""
        count = min(max(0, self.word(ring.HeaderWord.NUM_GROUPS)), ring.MOST_GROUPS)
        table = self._words[ring.FIRST_GROUP : ring.FIRST_GROUP + 3 * count].reshape(count, 3).tolist()
        return {group: GroupPosition(place, size) for group, place, size in table if 0 <= place < size}

    def read(self, *, give_up_before_ns: int = 0) -> npt.NDArray[np.void]:
        """Calls since the last read, up to the first unfinished one that began at or after `give_up_before_ns`."""
        head = self._head()
        if head is None:
            return np.zeros(0, CALL)
        first = max(self._next, head - ring.CAPACITY)
        self.num_lost += first - self._next
        numbers = np.arange(first, head)
        rows = self._rows()[numbers % ring.CAPACITY]  # a copy, which the writer cannot overwrite
        passed = max(0, (self._head() or head) - ring.CAPACITY + 1 - first)  # overwritten during the copy
        whole = is_call(rows, numbers)
        waiting = whole & (rows[:, COLUMNS["ended_ns"]] == 0) & (rows[:, COLUMNS["began_ns"]] >= give_up_before_ns)
        stop = int(np.argmax(waiting)) if waiting.any() else len(rows)
        self._next = first + stop
        passed = min(passed, stop)
        self.num_lost += passed
        self.num_bad += int(np.count_nonzero(~whole[passed:stop]))
        return _calls(rows[passed:stop][whole[passed:stop]])

    def _rows(self) -> Words:
        return self._words[ring.FIRST_ROW :].reshape(ring.CAPACITY, ring.ROW_WORDS)

    def _head(self) -> int | None:
        """Number of rows written; None if the value is invalid."""
        head = self.word(ring.HeaderWord.HEAD)
        return head if self._next <= head < 1 << 48 else None


def _open(path: Path) -> Words:
    with path.open("r+b") as file:
        if os.fstat(file.fileno()).st_size != ring.SIZE_BYTES:
            raise BadTrace(path, f"is not a ring of calls; expected {ring.SIZE_BYTES} bytes")
        words = np.frombuffer(mmap.mmap(file.fileno(), ring.SIZE_BYTES), np.int64)
    if words[ring.HeaderWord.MAGIC] != ring.MAGIC:
        raise BadTrace(path, "is not a ring of calls, or of another version")
    return words


def is_call(rows: Words, numbers: Words) -> npt.NDArray[np.bool_]:
    """Mask of valid rows: with the expected number and plausible values."""
    number, operation, peer, _, place, size, began, ended = rows.T
    sane: npt.NDArray[np.bool_] = (
        (number == numbers)
        & (operation >= 1)
        & (operation <= LAST_OPERATION)
        & (peer >= -1)
        & (peer < 1 << 31)
        & (place >= 0)
        & (size >= 0)
        & (size < MOST_BYTES)
        & (began > 0)
        & ((ended == 0) | (ended == ring.UNSEEN) | (ended >= began))
    )
    return sane


def _calls(rows: Words) -> npt.NDArray[np.void]:
    calls = np.zeros(len(rows), CALL)
    for name in COLUMNS:
        calls[name] = rows[:, COLUMNS[name]]
    calls["ended_ns"] = np.maximum(calls["ended_ns"], 0)
    return calls[np.argsort(calls["began_ns"], kind="stable")]  # the start of a receive is the start of its wait


# Read the calls of all ranks from a folder of ring buffers, as logs ---------------------------------------------------

PATIENCE_NS = 3_000_000_000  # for the end of a call; after that its end is treated as unobservable
Calls = npt.NDArray[np.void]


@dataclass(slots=True)
class RingCollector:
    """Finds the ring buffers in a folder, and reads them."""

    folder: Path
    far: Mapping[int, Any] = field(default_factory=dict)  # ranks of other machines (agent.py), read like local ones
    readers: dict[int, Any] = field(default_factory=dict)
    num_bad_before: int = 0
    num_unplaced: int = 0
    _refused: set[Path] = field(default_factory=set)

    def poll(self) -> bool:
        """Look for new rings; True if ranks have restarted, which invalidates all earlier state."""
        known = {reader.path for reader in self.readers.values()}
        found = [path for path in sorted(self.folder.glob("*.ring")) if path not in known | self._refused]
        newer = [reader for path in found if (reader := self._reader(path)) is not None]
        newer += [each for rank, each in list(self.far.items()) if self.readers.get(rank) is not each]
        again = any(self._is_other_job(reader) for reader in newer)
        if again:
            self.num_bad_before = self.num_bad
            self._refused |= known
            self.readers.clear()
        self.readers |= {reader.rank: reader for reader in newer}
        return again

    def _reader(self, path: Path) -> RingReader | None:
        try:
            return RingReader(path)
        except (BadTrace, OSError):  # not written yet, or not a ring of ours
            if path.stat().st_mtime_ns < time_ns() - PATIENCE_NS:
                self._refused.add(path)
            return None

    def _is_other_job(self, reader: Any) -> bool:
        """Whether this ring belongs to a later start of the ranks than the known readers."""
        numbers = {known.word(ring.HeaderWord.NUM_RANKS) for known in self.readers.values()}
        return reader.rank in self.readers or (bool(numbers) and numbers != {reader.word(ring.HeaderWord.NUM_RANKS)})

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the job; 0 before the first call."""
        return max((int(reader.word(ring.HeaderWord.NUM_RANKS)) for reader in self.readers.values()), default=0)

    @property
    def is_complete(self) -> bool:
        """Whether the rings of all ranks have been found."""
        return self.num_ranks > 0 and sorted(self.readers) == list(range(self.num_ranks))

    @property
    def num_bad(self) -> int:
        """Number of invalid rows that were skipped."""
        return self.num_bad_before + self.num_unplaced + sum(int(reader.num_bad) for reader in self.readers.values())

    @property
    def num_calls(self) -> int:
        return sum(reader.word(ring.HeaderWord.HEAD) for reader in self.readers.values())

    def read(self) -> list[CallLog]:
        """Calls since the last read, one log per rank."""
        calls = self.read_rows()
        logs, unplaced = logs_of(calls, {rank: reader.places for rank, reader in self.readers.items()})
        self.num_unplaced += unplaced
        return logs

    def read_rows(self) -> dict[int, Calls]:
        """Calls since the last read by rank, as recorded."""
        give_up_ns = monotonic_ns() - PATIENCE_NS
        return {rank: self.readers[rank].read(give_up_before_ns=give_up_ns) for rank in sorted(self.readers)}


def logs_of(calls: Mapping[int, Calls], places: Mapping[int, Mapping[int, GroupPosition]]) -> tuple[list[CallLog], int]:
    """Logs with global ranks, and the number of calls dropped because their group or peer is unknown."""
    members = members_of(places)
    logs, unplaced = [], 0
    for rank, rows in calls.items():
        placed = _placed(rows, members)
        unplaced += len(rows) - len(placed)
        groups = {group: tuple(sorted(members[group].values())) for group in places[rank] if group in members}
        if (placed["operation"] == Operation.STEP).any():
            groups[STEP_GROUP] = ()
        logs.append(CallLog(rank, placed, groups))
    return logs, unplaced


def members_of(places: Mapping[int, Mapping[int, GroupPosition]]) -> dict[int, dict[int, int]]:
    """Global rank by group and group rank; every rank has recorded only its own group rank."""
    members: dict[int, dict[int, int]] = {}
    for rank, groups in places.items():
        for group, place in groups.items():
            members.setdefault(group, {})[place.place] = rank
    return members


def _placed(rows: Calls, members: Mapping[int, Mapping[int, int]]) -> Calls:
    """The calls whose group and peer are known, with the global rank of the peer."""
    kept = rows.copy()
    keep = np.ones(len(rows), np.bool_)
    members = {**members, STEP_GROUP: {}}
    for group, peer in {(int(row["group"]), int(row["peer"])) for row in np.unique(rows[["group", "peer"]])}:
        at = (rows["group"] == group) & (rows["peer"] == peer)
        rank = peer if peer < 0 and group in members else members.get(group, {}).get(peer)
        keep &= ~at if rank is None else True
        kept["peer"][at] = -1 if rank is None else rank
    return kept[keep].astype(CALL)
