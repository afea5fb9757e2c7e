"""Small CSV files of plain numbers, read without pyarrow, whose import takes longer than such a file.

Only what every reader understands alike is read here: unquoted numbers under a header, each row as long as it. Anything
else, mistakes included, is left to `arrow`, so that both ways into a table give the same numbers and the same errors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.core.trace.columns import TraceColumn

MOST_BYTES = 1_000_000  # beyond it, importing pyarrow pays

_PLAIN = {
    "int": re.compile(r"-?[0-9]{1,18}"),  # any number this short fits into 64 bits
    "float": re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"),
}


def read_plain(path: Path, columns: Sequence[TraceColumn]) -> dict[str, npt.NDArray[Any]] | None:
    """The columns by name, or None where the file is not small and plain or lacks one of them."""
    rows = _rows(path) if path.name.lower().endswith(".csv") and path.stat().st_size <= MOST_BYTES else []
    if len(rows) < 2 or any(len(row) != len(rows[0]) for row in rows):
        return None
    header = rows[0]
    table = {}
    for column in columns:
        place = header.index(column.name) if header.count(column.name) == 1 else None
        array = None if place is None else _array(column, [row[place] for row in rows[1:]])
        if array is None:
            return None
        table[column.name] = array
    return table


def _rows(path: Path) -> list[list[str]]:
    """The cells of every line that is not empty; none at all where a comma or a line break may not mean one."""
    text = path.read_bytes().replace(b"\r\n", b"\n")
    if not text.isascii() or b'"' in text or b"\r" in text:
        return []
    return [line.split(",") for line in text.decode("ascii").split("\n") if line]


def _array(column: TraceColumn, cells: list[str]) -> npt.NDArray[Any] | None:
    if column.kind == "text" or not all(map(_PLAIN[column.kind].fullmatch, cells)):
        return None
    array = np.array(cells, dtype=np.float64 if column.kind == "float" else np.int64)
    return array if np.isfinite(array).all() and array.min() >= column.least else None
