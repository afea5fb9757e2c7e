"""The slow second reading of a CSV file that could not be used: finds the first offending line and column.

Parsing a whole file cell by cell in Python takes seconds, so it happens only once the fast reader has given up.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import deque
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TextIO

from takeup.core.trace.columns import TraceColumn
from takeup.errors import BadTrace


def diagnose(path: Path, columns: Sequence[TraceColumn], reason: str) -> BadTrace:
    """The error that describes the first thing wrong in the file; `reason` serves when every row looks right."""
    if _is_gzip(path):
        deque(read_rows(path), maxlen=0)  # damage, which explains strange cells before it, is raised here
    rows = read_rows(path)
    _, header = next(rows)
    places = [(header.index(column.name), column) for column in columns]
    for line, row in rows:
        if len(row) != len(header):
            return BadTrace(path, f"found {len(row)} cells where the header has {len(header)}", line=line)
        for place, column in places:
            if problem := column.problem_with(row[place]):
                return BadTrace(path, problem, line=line, column=column.name)
    return BadTrace(path, f"cannot be read: {reason}")


def read_rows(path: Path) -> Generator[tuple[int, list[str]], None, None]:
    """Every row that is not blank, header included, with the line it starts on; bytes that are not UTF-8 survive."""
    line = 0
    try:
        with _open_text(path) as file:
            reader = csv.reader(file)
            for row in reader:
                if row:
                    yield line + 1, row
                line = reader.line_num
    except EOFError as error:
        raise BadTrace(path, "the compressed data ends early; fetch the file again", line=line or None) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        problem = f"the compressed data is damaged ({error}); fetch the file again"
        raise BadTrace(path, problem, line=line or None) from error
    except csv.Error as error:
        raise BadTrace(path, f"is not CSV: {error}", line=line + 1) from error


def _open_text(path: Path) -> TextIO:
    if _is_gzip(path):
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="")
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def _is_gzip(path: Path) -> bool:
    return path.name.lower().endswith(".gz")
