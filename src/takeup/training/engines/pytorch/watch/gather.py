"""Read the calls of all ranks from a folder of ring buffers, as logs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.errors import BadTrace
from takeup.training.engines.pytorch.watch.ring import HeaderWord
from takeup.training.engines.pytorch.watch.rows import GroupPosition, RingReader
from takeup.training.model.calls import CALL, CallLog

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
        numbers = {known.word(HeaderWord.NUM_RANKS) for known in self.readers.values()}
        return reader.rank in self.readers or (bool(numbers) and numbers != {reader.word(HeaderWord.NUM_RANKS)})

    @property
    def num_ranks(self) -> int:
        """Number of ranks of the job; 0 before the first call."""
        return max((int(reader.word(HeaderWord.NUM_RANKS)) for reader in self.readers.values()), default=0)

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
        """Number of calls recorded so far."""
        return sum(reader.word(HeaderWord.HEAD) for reader in self.readers.values())

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
    for group, peer in {(int(row["group"]), int(row["peer"])) for row in np.unique(rows[["group", "peer"]])}:
        at = (rows["group"] == group) & (rows["peer"] == peer)
        rank = peer if peer < 0 and group in members else members.get(group, {}).get(peer)
        keep &= ~at if rank is None else True
        kept["peer"][at] = -1 if rank is None else rank
    return kept[keep].astype(CALL)
