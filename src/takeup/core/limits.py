"""Limits of all readers: sizes that no real file has, so that damage is one sentence instead of a full memory.

A file from elsewhere may be cut, damaged or made to hurt. Readers open it under `reading`, which turns whatever the
decoders raise into one error with the name of the file, and take its lines, its decompressed data and its counts from
here.
"""

import csv
import gzip
import io
import json
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO, TextIO, cast

from takeup.errors import BadTrace

MOST_LINE_BYTES = 64 << 20  # the longest events of Spark, with the plan of a large query, have a few MiB
MOST_TEXT_BYTES = 1 << 30  # of a file that is parsed as a whole
MOST_RATIO = 200  # of decompressed data to the file; repetitive logs reach 50
SMALL_BYTES = 64 << 20  # decompressed data up to here may have any ratio
MOST_MEMBERS = 10_000  # of an archive
MOST_COUNT = 1_000_000  # GPUs of a job, workers, partitions: things that are counted one by one
MOST_SIZE_BYTES = 1 << 50  # of one block, so that sums stay exact
MOST_ROWS = 1_000_000  # of a Parquet file, and this many more for each of its MiB
LONGEST_S = 100 * 365 * 86_400.0  # between any two moments of a trace

DAMAGE = (
    *(OSError, EOFError, RuntimeError, OverflowError, MemoryError, ValueError),
    *(zlib.error, csv.Error, tarfile.TarError, zipfile.BadZipFile),
)


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """What decoders raise about the file at `path`, as an error that says what was `expected`."""
    try:
        yield
    except DAMAGE as error:
        if isinstance(error, OSError) and error.strerror:
            raise BadTrace(path, f"cannot be opened: {error.strerror}; {expected}") from error
        raise BadTrace(path, f"cannot be read: {_reason(error)}; {expected}") from error


def _reason(error: BaseException) -> str:
    match error:
        case json.JSONDecodeError():
            return f"it is not JSON ({error})"
        case UnicodeDecodeError():
            return f"byte {error.start} is not UTF-8"
        case RecursionError():
            return "it is not JSON, or nested too deeply"
        case MemoryError():
            return "it needs more memory than there is"
        case EOFError():
            return "the data ends early"
    return str(error).partition("\n")[0] or type(error).__name__


def read_text(path: Path, expected: str) -> str:
    """A whole file of UTF-8, with or without a byte order mark."""
    with reading(path, expected):
        if (size_bytes := path.stat().st_size) > MOST_TEXT_BYTES:
            raise BadTrace(path, f"has {size_bytes} bytes, more than {MOST_TEXT_BYTES}; {expected}")
        return path.read_text(encoding="utf-8-sig")


def read_json(path: Path, expected: str) -> Any:
    """A whole JSON file."""
    text = read_text(path, expected)
    with reading(path, expected):
        return json.loads(text)


def lines(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file, one at a time; one without an end is an error before it fills the memory."""
    return _lines(path, file.readline)


def text_lines(path: Path, file: TextIO) -> Iterator[str]:
    """The same for text."""
    return _lines(path, file.readline)


def _lines(path: Path, readline: Any) -> Iterator[Any]:
    number = 0
    while line := readline(MOST_LINE_BYTES + 1):
        number += 1
        if len(line) > MOST_LINE_BYTES:
            raise BadTrace(path, f"has more than {MOST_LINE_BYTES} bytes; no trace has such lines", line=number)
        yield line


class _Unpacked(io.RawIOBase):
    """Decompressed data that ends in an error where it is far larger than its file."""

    def __init__(self, path: Path, stream: Any) -> None:
        self._path, self._stream = path, stream
        self._left = max(SMALL_BYTES, MOST_RATIO * path.stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.read1(len(buffer))  # what there is, so that damage comes after all that precedes it
        self._left -= len(data)
        if self._left < 0:
            found = f"holds more than {MOST_RATIO} times its size when decompressed"
            raise BadTrace(self._path, f"{found}; decompress it first if it is what you expect")
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._stream.close()
        super().close()


def unpacked(path: Path, stream: Any = None) -> BinaryIO:
    """Decompressed data of a file, by default from gzip."""
    return cast(BinaryIO, io.BufferedReader(_Unpacked(path, stream or gzip.GzipFile(path))))


def check_archive(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse an archive with more members, or members far larger, than a file of its size has."""
    members = archive.infolist()
    most = max(SMALL_BYTES, MOST_RATIO * path.stat().st_size)
    if len(members) > MOST_MEMBERS or sum(member.file_size for member in members) > most:
        raise BadTrace(path, f"holds {len(members)} members of more than {most} bytes in all; fetch the file again")


def check_rows(path: Path, num_rows: int) -> None:
    """Refuse a Parquet file that says it has more rows than its bytes can hold."""
    most = MOST_ROWS * (1 + (path.stat().st_size >> 20))
    if num_rows > most:
        raise BadTrace(path, f"says that it has {num_rows} rows, more than {most} in its size; fetch the file again")
