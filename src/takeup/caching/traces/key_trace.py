"""Key traces, tables or oracleGeneral files with one request per row, as workloads: each request is a task.

An oracleGeneral file, the format of the public cache-trace collections, is a sequence of 24-byte little-endian records:
second (4 bytes), object id (8), size in bytes (4), index of the next request of the object or -1 (8).
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.caching.model import Workload
from takeup.core.arrays import Ints
from takeup.core.extras import need
from takeup.core.limits import reading, unpacked
from takeup.core.trace import TraceColumn, column_names, read_table
from takeup.errors import BadTrace

RECORD = np.dtype([("second", "<u4"), ("id", "<u8"), ("size_bytes", "<u4"), ("next", "<i8")])
TABLES = (".csv", ".csv.gz", ".parquet")
RECORDS = tuple(kind + packed for kind in (".oraclegeneral", ".bin") for packed in ("", ".gz", ".zst"))


def read_key_table(path: Path | str) -> Workload:
    """One request of `key` per row. Without a column `size_bytes`, every block has size one."""
    keys = _read_keys(path)
    if "size_bytes" not in column_names(path):
        return workload_of_keys(path, keys, np.ones(len(keys), np.int64))
    return workload_of_keys(path, keys, read_table(path, [TraceColumn("size_bytes", "int", minimum=1)])["size_bytes"])


def read_oracle_general(path: Path | str) -> Workload:
    """The requests of an oracleGeneral file, plain, in gzip or in zstd."""
    records = _read_records(Path(path))
    size_bytes = np.ascontiguousarray(records["size_bytes"])
    if not size_bytes.all():
        number = int((size_bytes == 0).argmax()) + 1
        raise BadTrace(path, f"record {number} has size 0; expected at least one byte, drop such records first")
    return workload_of_keys(path, np.ascontiguousarray(records["id"]), size_bytes)


def workload_of_keys(path: Path | str, keys: npt.NDArray[Any], size_bytes: npt.NDArray[np.integer[Any]]) -> Workload:
    """A task with one input for each request, on one worker in one job; a block has the size of its first request.

    Blocks are numbered in the order in which their keys are first seen, and are on disk from the start.
    """
    blocks = _arrow().array(keys).dictionary_encode().indices.to_numpy().astype(np.int64)
    first: Ints = np.unique(blocks, return_index=True)[1]
    num_requests, num_blocks = len(blocks), len(first)
    zeros = np.zeros(num_requests, np.int64)
    return Workload(
        name=Path(path).name.partition(".")[0],
        block_bytes=size_bytes[first].astype(np.int64),
        block_worker=np.zeros(num_blocks, np.int64),
        block_producer=np.full(num_blocks, -1, np.int64),
        task_job=zeros,
        task_stage=np.arange(num_requests, dtype=np.int64),
        task_worker=zeros,
        task_compute_s=np.zeros(num_requests),
        input_starts=np.arange(num_requests + 1, dtype=np.int64),
        input_blocks=blocks,
        output_starts=np.zeros(num_requests + 1, np.int64),
        output_blocks=np.zeros(0, np.int64),
        stage_after=np.full(num_requests, -1, np.int64),
        block_dataset=np.full(num_blocks, -1, np.int64),
        block_spills=np.zeros(num_blocks, np.bool_),
        block_ends=np.full(num_blocks, num_requests, np.int64),
    )


def _read_keys(path: Path | str) -> npt.NDArray[Any]:
    """Keys are only compared, so whatever is not a column of whole numbers is taken as text."""
    try:
        return read_table(path, [TraceColumn("key", "int")])["key"]
    except BadTrace:
        return read_table(path, [TraceColumn("key", "text")])["key"]


def _read_records(path: Path) -> npt.NDArray[np.void]:
    with reading(path, "expected 24-byte records, fetch the file again"):
        data = _read_bytes(path)
    if len(data) == 0 or len(data) % RECORD.itemsize:
        problem = f"holds {len(data)} bytes; expected a multiple of {RECORD.itemsize} above zero, fetch the file again"
        raise BadTrace(path, problem)
    return np.frombuffer(data, RECORD)


def _read_bytes(path: Path) -> bytes | npt.NDArray[np.uint8]:
    """A plain file is memory-mapped, so that unused parts are not read."""
    if path.name.lower().endswith(".gz"):
        with unpacked(path) as stream:
            return stream.read()
    if path.name.lower().endswith(".zst"):
        with unpacked(path, _arrow().input_stream(str(path), compression="zstd")) as stream:
            return stream.read()
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else b""


def _arrow() -> Any:
    need("a trace of requests for keys", "traces")
    import pyarrow as pa

    return pa
