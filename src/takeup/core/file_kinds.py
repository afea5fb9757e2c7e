"""Files that `takeup try` answers: what a domain sees of a file to recognise it, and the answer it gives.

A file is recognised by its content, never by its name. Every domain lists its kinds in `DOMAIN/file_kinds.py`, the more
specific ones first; the modules that read the whole file are loaded only when one has matched.
"""

import gzip
import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from takeup.core.report import Report
from takeup.errors import BadTrace

HEAD_BYTES = 1 << 16
PARQUET, GZIP, ZSTD = b"PAR1", b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
SEPARATORS = ("|", "\t", ",")


@dataclass(frozen=True, slots=True)
class Sample:
    """The beginning of a file as text, decompressed, with the columns of its first line; or the names in a folder."""

    path: Path
    text: str = ""
    columns: frozenset[str] = frozenset()
    entries: frozenset[str] = frozenset()

    def has(self, *columns: str) -> bool:
        """Whether the table has all these columns, in lower case."""
        return self.columns.issuperset(columns)


@dataclass(frozen=True, slots=True)
class Answer:
    """A report in a few sentences, and the command that says more or puts the result to use."""

    report: Report
    sentences: tuple[str, ...]
    next_command: str


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file: its name in a sentence, how it is recognised, and `module:function` of the answer."""

    name: str
    matches: Callable[[Sample], bool]
    answer: str


def sample_of(path: Path) -> Sample:
    """What the kinds see of the file or folder at `path`."""
    if not path.exists():
        raise BadTrace(path, "does not exist; give a log, a trace or a model")
    if path.is_dir():
        return Sample(path, entries=frozenset(entry.name for entry in path.iterdir()))
    with path.open("rb") as file:
        begin = file.read(4)
    if begin == PARQUET:
        from takeup.core.trace.arrow import parquet_names

        return Sample(path, columns=frozenset(name.lower() for name in parquet_names(path)))
    try:
        text = _head(path, begin).decode("utf-8", "replace")
    except (OSError, EOFError) as error:
        raise BadTrace(path, f"cannot be read: {error}; copy the file again") from error
    return Sample(path, text, _columns(text.partition("\n")[0]))


def _head(path: Path, begin: bytes) -> bytes:
    if begin == ZSTD:
        import pyarrow as pa

        return bytes(pa.input_stream(str(path), compression="zstd").read(HEAD_BYTES))
    opener: Callable[..., Any] = gzip.open if begin.startswith(GZIP) else io.open
    with opener(path, "rb") as file:
        return bytes(file.read(HEAD_BYTES))


def _columns(line: str) -> frozenset[str]:
    separator = max(SEPARATORS, key=line.count)
    return frozenset(name.strip(' "\r\ufeff').lower() for name in line.split(separator))


def rows_of(report: Report, number: int = 0) -> list[dict[str, Any]]:
    """The rows of a table by column name; of several columns with one name the last counts."""
    table = report.tables[number]
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]
