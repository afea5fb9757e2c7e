"""Flat traces: request streams from tables and oracleGeneral files, and the way back to a file.

An oracleGeneral file, the format of the public cache-trace collections, is a sequence of 24-byte little-endian records:
second (4 bytes), object id (8), size in bytes (4), index of the next request of the object or -1 (8).
"""

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from takeup.caching.model import FlatTrace
from takeup.core.compiled import inner, kernel
from takeup.core.files import write_atomically
from takeup.core.trace import TraceColumn, column_names, read_table
from takeup.errors import BadInput, BadTrace

# Dense numbers for arbitrary 64-bit keys, in the order in which they are first seen -----------------------------------
#
# How it works. Open addressing: a key's slot in the table is the top bits of a product; the table holds only numbers,
# the keys are in a separate array in the order of their numbers. So frequent keys, which are seen early, share a few
# cache lines. The table doubles when it is half full.

Keys = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.int32]
EMPTY = -1
FIRST_BITS = 12
MULTIPLIER = 0x9E3779B97F4A7C15  # 2**64 divided by the golden ratio: Fibonacci hashing


@inner
def _place(table: Ids, shift: np.uint64, uniques: Keys, key: np.uint64) -> np.uint64:
    """The slot of the key in the table, or the empty slot where it belongs."""
    mask = np.uint64(len(table) - 1)
    mixed = (key ^ (key >> np.uint64(32))) * np.uint64(MULTIPLIER)
    place = mixed >> shift
    while table[place] != EMPTY and uniques[np.uint64(table[place])] != key:
        place = (place + np.uint64(1)) & mask
    return place


@inner
def _fill(uniques: Keys, num_uniques: int, num_bits: int) -> Ids:
    """A new table with 2**num_bits slots, filled with the numbers so far."""
    table = np.full(1 << num_bits, EMPTY, np.int32)
    for number in range(num_uniques):
        table[_place(table, np.uint64(64 - num_bits), uniques, uniques[number])] = number
    return table


@kernel
def renumber(keys: Keys) -> tuple[Ids, Keys]:
    """The number of every key, and the key of every number."""
    ids = np.empty(len(keys), np.int32)
    num_bits = FIRST_BITS
    uniques = np.empty(1 << (num_bits - 1), np.uint64)
    num_uniques = 0
    table = _fill(uniques, 0, num_bits)
    for index in range(len(keys)):
        key = keys[index]
        place = _place(table, np.uint64(64 - num_bits), uniques, key)
        number = table[place]
        if number == EMPTY:
            number = num_uniques
            table[place] = number
            uniques[number] = key
            num_uniques += 1
            if num_uniques == len(uniques):
                num_bits += 1
                uniques = np.concatenate((uniques, np.empty(num_uniques, np.uint64)))
                table = _fill(uniques, num_uniques, num_bits)
        ids[index] = number
    return ids, uniques[:num_uniques].copy()


@kernel
def first_values(ids: Ids, values: npt.NDArray[np.int64], num_ids: int) -> npt.NDArray[np.int64]:
    """The value at the first occurrence of every number; first occurrences must be in ascending order."""
    first = np.empty(num_ids, np.int64)
    num_seen = 0
    for index in range(len(ids)):
        if ids[index] == num_seen:
            first[num_seen] = values[index]
            num_seen += 1
    return first


RECORD = np.dtype([("second", "<u4"), ("id", "<u8"), ("size_bytes", "<u4"), ("next", "<i8")])
TABLES = (".csv", ".csv.gz", ".parquet")
RECORDS = tuple(kind + packed for kind in (".oraclegeneral", ".bin") for packed in ("", ".gz", ".zst"))
FLAT_SUFFIXES = TABLES + RECORDS


def dense_ids(keys: npt.NDArray[Any]) -> tuple[Ids, npt.NDArray[Any]]:
    """Number the keys, integers or text, in the order in which they are first seen; and the key of every number."""
    if np.issubdtype(keys.dtype, np.integer):
        bits = np.ascontiguousarray(keys).astype(f"{keys.dtype.kind}8", copy=False)
        ids, uniques = renumber(bits.view(np.uint64))
        return ids, uniques.view(bits.dtype).astype(keys.dtype, copy=False)
    encoded = pa.array(keys).dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary.to_numpy(zero_copy_only=False)


def read_flat(path: Path | str) -> FlatTrace:
    """Read any flat trace; the end of the name tells the format."""
    name = Path(path).name.lower()
    if name.endswith(TABLES):
        return read_flat_csv(path)
    if name.endswith(RECORDS):
        return read_oracle_general(path)
    raise BadTrace(path, f"the name does not tell the format; expected it to end in one of {', '.join(FLAT_SUFFIXES)}")


def read_flat_csv(path: Path | str, key: str = "key", size: str = "size_bytes") -> FlatTrace:
    """One request per row, in the order of the rows. Without a column of sizes in bytes, every block has size one."""
    keys = _read_keys(path, key)
    ids, uniques = dense_ids(keys)
    if size not in column_names(path):
        return FlatTrace(_stem(path), ids, np.ones(len(uniques), np.int64))
    size_bytes = read_table(path, [TraceColumn(size, "int", minimum=1)])[size]
    return FlatTrace(_stem(path), ids, first_values(ids, size_bytes, len(uniques)))


def read_oracle_general(path: Path | str) -> FlatTrace:
    """Read records; a block has the size of its first request."""
    records = _read_records(Path(path))
    size_bytes = np.ascontiguousarray(records["size_bytes"])
    if not size_bytes.all():
        number = int((size_bytes == 0).argmax()) + 1
        raise BadTrace(path, f"record {number} has size 0; expected at least one byte, drop such records first")
    ids, uniques = dense_ids(np.ascontiguousarray(records["id"]))
    return FlatTrace(_stem(path), ids, first_values(ids, size_bytes, len(uniques)))


def write_oracle_general(path: Path | str, trace: FlatTrace, keys: npt.NDArray[np.uint64] | None = None) -> None:
    """Write records; the object ids are `keys` by block, or the numbers of the blocks."""
    if trace.block_bytes.max(initial=0) >= 2**32:
        raise BadInput(f"a block of {trace.block_bytes.max()} bytes does not fit; the format holds sizes below 4 GiB")
    records = np.zeros(len(trace.requests), RECORD)
    records["id"] = trace.requests if keys is None else keys[trace.requests]
    records["size_bytes"] = trace.block_bytes[trace.requests]
    records["next"] = _next_requests(trace.requests)
    data = records.tobytes()
    write_atomically(Path(path), gzip.compress(data) if str(path).lower().endswith(".gz") else data)


def _read_keys(path: Path | str, key: str) -> npt.NDArray[Any]:
    """Keys are only compared, so whatever is not a column of whole numbers is taken as text."""
    try:
        return read_table(path, [TraceColumn(key, "int")])[key]
    except BadTrace:
        return read_table(path, [TraceColumn(key, "text")])[key]


def _read_records(path: Path) -> npt.NDArray[np.void]:
    try:
        data = _read_bytes(path)
    except FileNotFoundError as error:
        raise BadTrace(path, "is not there; check the path") from error
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise BadTrace(path, f"cannot be read ({error}); expected 24-byte records, fetch the file again") from error
    if len(data) == 0 or len(data) % RECORD.itemsize:
        problem = f"holds {len(data)} bytes; expected a multiple of {RECORD.itemsize} above zero, fetch the file again"
        raise BadTrace(path, problem)
    return np.frombuffer(data, RECORD)


def _read_bytes(path: Path) -> bytes | npt.NDArray[np.uint8]:
    """A plain file is memory-mapped, so that unused parts are not read."""
    if path.name.lower().endswith(".gz"):
        return gzip.decompress(path.read_bytes())
    if path.name.lower().endswith(".zst"):
        with pa.input_stream(str(path), compression="zstd") as stream:
            return bytes(stream.read())
    return np.memmap(path, np.uint8, "r") if path.stat().st_size else b""


def _next_requests(requests: Ids) -> npt.NDArray[np.int64]:
    order = np.argsort(requests, kind="stable")
    following = np.full(len(requests), -1, np.int64)
    is_same = requests[order[1:]] == requests[order[:-1]]
    following[order[:-1][is_same]] = order[1:][is_same]
    return following


def _stem(path: Path | str) -> str:
    return Path(path).name.partition(".")[0]
