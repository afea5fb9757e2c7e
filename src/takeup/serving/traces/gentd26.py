"""Reader of GenTD26, Alibaba's published trace of an image-generation service (cluster-trace-v2026-GenAI).

`data_trace_processed.csv` has a row for every request, in order, without a time; its column `lora_args` lists the LoRAs
with their scales. The trace is not shipped; give the path of the file, or of the archive it comes in.
"""

import ast
import csv
import io
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from takeup.errors import BadTrace
from takeup.serving.model import Access

FILE, COLUMN, BASE = "data_trace_processed.csv", "lora_args", "checkpoint_model_version_id"


def read_gentd26(path: Path, *, with_base: bool = False) -> list[Access]:
    """The LoRAs of every request, numbered by first appearance; `with_base` includes the base model."""
    numbers: dict[str, int] = {}
    with _opened(path) as file:
        rows = csv.DictReader(file)
        _check(path, rows.fieldnames or ())
        return [
            Access(0, tuple(numbers.setdefault(name, len(numbers)) for name in _names(path, line, row, with_base)))
            for line, row in enumerate(rows, start=2)
        ]


@contextmanager
def _opened(path: Path) -> Iterator[IO[str]]:
    try:
        if path.name.endswith(".csv"):
            with path.open(encoding="utf-8", newline="") as file:
                yield file
        else:
            with tarfile.open(path) as archive:
                member = archive.extractfile(FILE)
                assert member is not None
                yield io.TextIOWrapper(member, encoding="utf-8", newline="")
    except (OSError, tarfile.TarError, KeyError) as problem:
        raise BadTrace(path, f"cannot be read ({problem}); give {FILE} or the archive it comes in") from problem


def _check(path: Path, columns: object) -> None:
    for column in (COLUMN, BASE):
        if column not in list(columns):  # type: ignore[call-overload]
            raise BadTrace(path, f"has no column {column!r}; give {FILE} of the trace GenTD26")


def _names(path: Path, line: int, row: dict[str, str], with_base: bool) -> list[str]:
    try:
        uses = ast.literal_eval(row[COLUMN] or "[]")
        names = [str(use["modelVersionId"]) for use in uses]
    except (ValueError, SyntaxError, TypeError, KeyError) as problem:
        raise BadTrace(path, "is no list of LoRAs with their scales", line=line, column=COLUMN) from problem
    return list(dict.fromkeys(([f"base {row[BASE]}"] if with_base else []) + names))
