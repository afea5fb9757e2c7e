"""Write-ahead journal of the controller, and the ledger of evictions, notices and quotas that is read from it."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from takeup.cluster.engines.slurm.rows import JobRow, JobStatus
from takeup.cluster.model import Eviction, Quota, SetQuota, Start
from takeup.core.files import sync_folder
from takeup.errors import BadInput, OutputFailed

# What a controller does, line by line, on disk before it is done: one that was killed finds its place again -----------
#
# Every line is a JSON object. Entries are written by one unbuffered call; if it or the sync fails, the file is cut back
# to its old length, so that an entry that was refused is never read again. If even that fails, every later entry is
# refused. A line that was half written when the machine stopped is dropped; what is damaged elsewhere is left out and
# counted. A journal belongs to one process at a time.

Entry = Mapping[str, Any]

CLAIM_LIMIT_S = 2.0  # a program that a killed controller was about to start holds its lock until it runs
CLAIM_PAUSE_S = 0.02


class Journal:
    """The entries at `path` when it was opened, oldest first, and a place to write more."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.num_damaged = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = path.with_name(f"{path.name}.lock").open("w", encoding="utf-8")
        except OSError as error:
            raise _unusable(path, error) from error
        self._claim()
        try:
            self._end_line()
            self.entries = tuple(self.read())
            self._file = _open_synced(path)
        except OSError as error:
            self._lock.close()
            raise _unusable(path, error) from error
        self.num_lines = len(self.entries)
        self._length = os.fstat(self._file).st_size
        self._is_name_synced = False

    def write(self, *entries: Entry) -> None:
        """Add all entries or none; they are on the disk when this returns."""
        data = _line(entries)
        try:
            self._cut()
            self._sync_name()
            _append(self._file, data)
        except OSError as error:
            raise OutputFailed(f"cannot write to {self.path}: {error.strerror}; {self._undone()}") from error
        self._length += len(data)
        self.num_lines += 1

    def shorten(self, entries: Iterable[Entry]) -> None:
        """Keep nothing but these entries; if that fails, everything stays as it was."""
        lines = [_line((entry,)) for entry in entries]
        fresh = self.path.with_name(f".{self.path.name}.shortened")
        try:
            fresh.unlink(missing_ok=True)
            file = _open(fresh)
            try:
                _append(file, b"".join(lines))
                fresh.replace(self.path)
            except OSError:
                os.close(file)
                with suppress(OSError):
                    fresh.unlink()
                raise
        except OSError as error:
            raise OutputFailed(f"cannot shorten {self.path}: {error.strerror}; make room on that disk") from error
        os.close(self._file)
        self._file, self._is_name_synced = file, False
        self._length, self.num_lines = sum(map(len, lines)), len(lines)

    def close(self) -> None:
        """Let another process have it, whatever happens."""
        try:
            self._cut()
        except OSError as error:
            found = f"{self.path} ends in an entry that was refused: {error.strerror}"
            raise OutputFailed(f"{found}; cut it off after {self._length} bytes") from error
        finally:
            self._lock.close()
            os.close(self._file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def read(self) -> Iterator[Entry]:
        """All entries that are in the file now; damaged lines are counted."""
        for line in self._content().splitlines():
            found = _parsed(line)
            self.num_damaged += not found
            yield from found

    def _claim(self) -> None:
        until_s = time.monotonic() + CLAIM_LIMIT_S
        while not self._is_ours():
            if time.monotonic() >= until_s:
                self._lock.close()
                found = f"another controller writes to {self.path}"
                raise BadInput(f"{found}; stop it first, or give this one its own journal")
            time.sleep(CLAIM_PAUSE_S)

    def _is_ours(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _content(self) -> bytes:
        return self.path.read_bytes() if self.path.exists() else b""

    def _end_line(self) -> None:
        """Remove a last line that was not written whole: what follows must begin on its own line."""
        content = self._content()
        length = content.rfind(b"\n") + 1
        if length < len(content):
            os.truncate(self.path, length)
            self.num_damaged += 1

    def _cut(self) -> None:
        """Remove what follows the last entry that was acknowledged, for good."""
        if os.fstat(self._file).st_size > self._length:
            os.ftruncate(self._file, self._length)
            os.fsync(self._file)

    def _sync_name(self) -> None:
        """Before the first entry of a new file is acknowledged, its name is on the disk too."""
        if not self._is_name_synced:
            sync_folder(self.path.parent)
            self._is_name_synced = True

    def _undone(self) -> str:
        """Take back what may have been written of a refused entry, and say whether that succeeded."""
        with suppress(OSError):
            self._cut()
            return "nothing is done unwritten"
        return "it is unknown whether the next controller reads this entry; check the disk before it starts"


def _unusable(path: Path, error: OSError) -> OutputFailed:
    return OutputFailed(f"cannot keep a journal at {path}: {error.strerror}; choose another place")


def _open(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _open_synced(path: Path) -> int:
    """Open a journal whose content is on the disk: nothing is replayed that a power failure could still take away."""
    file = _open(path)
    try:
        os.fsync(file)
    except OSError:
        os.close(file)
        raise
    return file


def _append(file: int, data: bytes) -> None:
    """Write by one call, and sync; a part is a failure."""
    if os.write(file, data) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fsync(file)


def _line(entries: Sequence[Entry]) -> bytes:
    return f"{json.dumps(entries[0] if len(entries) == 1 else entries)}\n".encode()


def _parsed(line: bytes) -> list[Entry]:
    """The entries of a line; none if it is damaged."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return []
    entries = found if isinstance(found, list) else [found]
    return entries if all(isinstance(entry, dict) for entry in entries) else []


# What the controller has done to Slurm's jobs, as its journal shows: evictions, notices and quotas --------------------
#
# The journal is a write-ahead log: an eviction is recorded before the command is sent. After a crash it is unknown
# whether Slurm received it; the restart count of the job shows it, because Slurm raises it with the eviction itself.
# Repeating the command is idempotent: Slurm requeues only running jobs, and none runs again unless we start it.

DAY_S = 86_400.0
MOST_LINES = 200_000


@dataclass(frozen=True, slots=True)
class Notice:
    """A job was asked to save its work, because it will be evicted for another at some moment."""

    job_id: str
    for_job: str
    since_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class _Intent:
    """An eviction that was asked for: of which run, when, and from where."""

    num_restarts: int
    when_s: float
    nodes: tuple[str, ...]


@dataclass(slots=True)
class SlurmLedger:
    """Everything that must survive a crash; without a journal it lives as long as the process."""

    journal: Journal | None = None
    quotas: dict[str, Quota] = field(default_factory=dict)
    notices: dict[str, Notice] = field(default_factory=dict)
    evictions: list[Eviction] = field(default_factory=list)
    intents: dict[str, _Intent] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)  # jobs that we hold, and their restart count while we do

    def __post_init__(self) -> None:
        for entry in () if self.journal is None else self.journal.entries:
            self._fold(entry)

    def intend_evictions(self, victims: Sequence[tuple[JobRow, str]], for_job: str, now_s: float) -> None:
        """About to evict the present runs of jobs, each for a reason; all of them are on the disk, or none."""
        self._write(*(
            {"do": "evict", "at_s": now_s, "job": row.id, "restarts": row.num_restarts, "nodes": row.nodes,
             "for": for_job, "reason": reason}
            for row, reason in victims
        ))  # fmt: skip

    def note_hold(self, row: JobRow) -> None:
        """About to hold a job that was released and has not started."""
        self._write({"do": "hold", "job": row.id, "restarts": row.num_restarts})

    def is_held(self, row: JobRow) -> bool:
        """Whether the hold of a job is ours: nothing else has requeued or held it since."""
        return self.held.get(row.id) == row.num_restarts

    def is_evicted(self, row: JobRow) -> bool:
        """Whether this run was evicted since we looked last."""
        intent = self.intents.get(row.id)
        return intent is not None and intent.num_restarts == row.num_restarts

    def begun_since(self, when_s: float) -> tuple[str, ...]:
        """Jobs whose eviction was recorded after `when_s` and is not yet confirmed."""
        return tuple(name for name, intent in self.intents.items() if intent.when_s > when_s)

    def give_notice(self, notice: Notice, reason: str) -> None:
        """About to give a job its notice of eviction."""
        entry = {"do": "notice", "at_s": notice.since_s, "job": notice.job_id, "for": notice.for_job}
        self._write({**entry, "until_s": notice.until_s, "reason": reason})

    def intend_start(self, decision: Start, now_s: float, num_restarts: int = 0) -> None:
        """About to start a job; until it runs, its hold is ours."""
        entry = {"do": "start", "at_s": now_s, "job": decision.job_id, "restarts": num_restarts}
        self._write({**entry, "nodes": decision.nodes, "grade": decision.grade.name, "reason": decision.reason})

    def note_quota(self, decision: SetQuota, now_s: float) -> None:
        """This much may be promised from now on."""
        offers = [[hours, gpus] for hours, gpus in decision.quota.gpus_by_hours.items()]
        entry = {"do": "quota", "at_s": now_s, "pool": decision.quota.pool, "gpus": offers}
        self._write({**entry, "coefficient": decision.quota.coefficient})

    def forget(self, job_id: str, what: str) -> None:
        """An intention came to nothing: Slurm refused it."""
        self._write(_forgotten(job_id, what))

    def settle(self, rows: Iterable[JobRow], now_s: float) -> None:
        """Compare what was intended with the jobs that Slurm knows, and how often each was restarted by now."""
        known = {row.id: row for row in rows}
        self._write(*self._settled(known))
        self.evictions = [it for it in self.evictions if it.when_s > now_s - DAY_S]
        self.held = {job: count for job, count in self.held.items() if job in known and not _runs(known[job], count)}

    def _settled(self, known: Mapping[str, JobRow]) -> Iterator[Entry]:
        for job_id, intent in self.intents.items():
            row = known.get(job_id)
            if row is not None and row.num_restarts > intent.num_restarts:
                yield {"do": "evicted", "job": job_id}
            elif row is None or row.status == JobStatus.RUNNING:
                yield _forgotten(job_id, "evict")  # the job ended by itself, or Slurm never heard of it
        for job_id, notice in self.notices.items():
            is_here = job_id in known and known[job_id].status == JobStatus.RUNNING
            is_wanted = notice.for_job in known and known[notice.for_job].status == JobStatus.HELD
            if not is_here or not is_wanted:
                yield _forgotten(job_id, "notice")

    def tidy(self, now_s: float) -> None:
        """Shorten a journal that has grown long to what still matters."""
        if self.journal is not None and self.journal.num_lines > max(MOST_LINES, 2 * len(self.evictions)):
            self.journal.shorten(self._state(now_s - DAY_S))

    def _state(self, since_s: float) -> Iterator[Entry]:
        """Entries that give this ledger again, without evictions before `since_s`."""
        for quota in self.quotas.values():
            entry: Entry = {"do": "quota", "pool": quota.pool, "gpus": list(quota.gpus_by_hours.items())}
            yield {**entry, "coefficient": quota.coefficient}
        for eviction in self.evictions:
            yield {"do": "past", "at_s": eviction.when_s, "job": eviction.job_id, "nodes": eviction.nodes}
        for job, intent in self.intents.items():
            if intent.when_s > since_s:
                entry = {"do": "evict", "at_s": intent.when_s, "job": job, "nodes": intent.nodes}
                yield {**entry, "restarts": intent.num_restarts}
        for it in self.notices.values():
            yield {"do": "notice", "at_s": it.since_s, "job": it.job_id, "for": it.for_job, "until_s": it.until_s}
        for job, num_restarts in self.held.items():
            yield {"do": "hold", "job": job, "restarts": num_restarts}

    def _write(self, *entries: Entry) -> None:
        if self.journal is not None and entries:
            self.journal.write(*entries)
        for entry in entries:
            self._fold(entry)

    def _fold(self, entry: Entry) -> None:
        """Take over what an entry says; one that cannot be read changes nothing."""
        try:
            self._folded(entry)
        except (KeyError, OverflowError, TypeError, ValueError):
            return

    def _folded(self, entry: Entry) -> None:
        what, job_id = entry["do"], str(entry.get("job", ""))
        if what == "evict":
            nodes = tuple(str(name) for name in entry["nodes"])
            self.intents[job_id] = _Intent(int(entry["restarts"]), float(entry["at_s"]), nodes)
            self.held[job_id] = int(entry["restarts"]) + 1
        elif what in {"hold", "start"}:
            self.held[job_id] = int(entry["restarts"])
        elif what == "evicted" and job_id in self.intents:
            intent = self.intents.pop(job_id)
            self.evictions.append(Eviction(job_id, intent.when_s, intent.nodes))
        elif what == "past":
            self.evictions.append(Eviction(job_id, float(entry["at_s"]), tuple(map(str, entry["nodes"]))))
        elif what == "notice":
            notice = Notice(job_id, str(entry["for"]), float(entry["at_s"]), float(entry["until_s"]))
            self.notices[job_id] = notice
        elif what == "quota":
            offers = {float(hours): float(gpus) for hours, gpus in entry["gpus"] if not math.isnan(gpus)}
            coefficient = float(entry.get("coefficient", 1.0))
            self.quotas[str(entry["pool"])] = Quota(str(entry["pool"]), offers, coefficient=coefficient)
        elif what == "forget":
            (self.notices if entry["what"] == "notice" else self.intents).pop(job_id, None)


def _forgotten(job_id: str, what: str) -> Entry:
    return {"do": "forget", "what": what, "job": job_id}


def _runs(row: JobRow, num_restarts: int) -> bool:
    """Whether a job that we held runs again; while it still ends its old run, it does not."""
    return row.status == JobStatus.RUNNING and row.num_restarts >= num_restarts
