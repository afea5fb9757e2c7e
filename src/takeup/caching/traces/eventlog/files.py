"""The files of an event log: find them, in their order, and read them line by line as JSON."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from takeup.errors import BadTrace

_COMPRESSED = frozenset((".lz4", ".lzf", ".snappy", ".zstd"))
_ROLLED = re.compile(r"events_(\d+)_.*")
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class LogLine:
    """One event and its location in the log."""

    path: Path
    number: int
    event: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The files of one log in the order in which they were written; `notes` is added to while they are read."""

    path: Path
    parts: tuple[Path, ...]
    notes: list[str] = field(default_factory=list)


def find_log(path: Path) -> LogFiles:
    """The log at `path`: a file, a rolling log's folder, or a folder that holds exactly one of these."""
    try:
        return _find(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _find(path: Path) -> LogFiles:
    if not path.exists():
        raise BadTrace(path, "does not exist; give an event log that spark.eventLog.dir holds")
    if not path.is_dir():
        return LogFiles(path, (_readable(path),))
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith((".", "_")))
    if any(_ROLLED.fullmatch(entry.name) for entry in entries):
        return _rolling_log(path, entries)
    if len(entries) != 1:
        names = ", ".join(entry.name for entry in entries[:3]) + (", ..." if len(entries) > 3 else "")
        raise BadTrace(path, f"holds {len(entries)} entries ({names}) instead of one event log; name one of them")
    return _find(entries[0])


def read_lines(log: LogFiles, *, allow_truncated: bool) -> Iterator[LogLine]:
    """Iterate over the events of the log; files are streamed, never loaded as a whole."""
    for part in log.parts:
        try:
            with _open(part) as file:
                yield from _parse(part, file, allow_truncated, log.notes)
        except (EOFError, zlib.error) as error:
            if not (allow_truncated and part == log.parts[-1]):
                raise BadTrace(
                    part, "the gzip data ends early; copy the file again, or pass --allow-truncated to read the rest"
                ) from error
            log.notes.append(f"{part.name}: the gzip data ends early; read up to there")
        except OSError as error:
            raise _unreadable(part, error) from error


def _rolling_log(path: Path, entries: list[Path]) -> LogFiles:
    """Files by number. A `.compact` file stands for all up to its number."""
    numbered = sorted((int(match[1]), entry) for entry in entries if (match := _ROLLED.fullmatch(entry.name)))
    compacted = [number for number, entry in numbered if entry.suffix == ".compact"]
    first = max(compacted, default=1)
    parts = {
        number: entry for number, entry in numbered if number > first or entry.suffix == ".compact" or not compacted
    }
    missing = [number for number in range(first, numbered[-1][0] + 1) if number not in parts]
    if missing:
        raise BadTrace(
            path, f"the rolling log lacks its file number {missing[0]} (events_{missing[0]}_...); copy all of it"
        )
    notes = ["the history server has compacted this log: jobs that had ended before are not in it"] if compacted else []
    return LogFiles(path, tuple(_readable(parts[number]) for number in sorted(parts) if number >= first), notes)


def _readable(path: Path) -> Path:
    suffix = path.with_suffix("").suffix if path.suffix == ".inprogress" else path.suffix
    if suffix in _COMPRESSED:
        raise BadTrace(
            path,
            f"is compressed with Spark's {suffix[1:]} codec, which is not read here; set spark.eventLog.compress=false "
            "or decompress it first (gzip is fine)",
        )
    return path


def _open(path: Path) -> BinaryIO:
    with path.open("rb") as file:
        is_gzip = file.read(2) == _GZIP_MAGIC
    return cast(BinaryIO, gzip.open(path)) if is_gzip else path.open("rb")


def _parse(path: Path, file: BinaryIO, allow_truncated: bool, notes: list[str]) -> Iterator[LogLine]:
    for number, text in enumerate(file, start=1):
        try:
            event = json.loads(text)
        except ValueError as error:
            if number == 1 or next(file, None) is not None:
                raise BadTrace(path, _not_an_event(text), line=number) from error
            if not allow_truncated:
                raise BadTrace(path, _CUT, line=number) from error
            notes.append(f"{path.name}: line {number} is cut in the middle and left out")
            return
        if not isinstance(event, dict) or "Event" not in event:
            raise BadTrace(path, _not_an_event(text), line=number)
        yield LogLine(path, number, event)


def _unreadable(path: Path, error: OSError) -> BadTrace:
    return BadTrace(path, f"cannot be read: {error.strerror or error}; check the file and its rights")


_CUT = (
    "is cut in the middle, but every line is one JSON event; the log of a running or killed application ends in "
    "mid-line: remove that line or pass --allow-truncated"
)


def _not_an_event(text: bytes) -> str:
    found = text[:40].decode(errors="replace").strip()
    return f"found {found!r}, but every line of a Spark event log is one JSON event; give a log that Spark wrote"
