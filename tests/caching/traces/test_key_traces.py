"""Key traces are read as workloads of one read per task; files that are none are refused in one sentence."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.support.key_traces import write_oracle_general, zipf_keys
from takeup.caching.model import Workload
from takeup.caching.traces import read_trace
from takeup.caching.traces.key_trace import RECORD, read_key_table, read_oracle_general, workload_of_keys
from takeup.errors import BadTrace

REQUESTS = [0, 1, 0, 2, 1, 0]
SIZES = [5, 7, 9]
KEYS = np.array(REQUESTS)
REQUEST_BYTES = np.array([SIZES[key] for key in REQUESTS])


def write_records(path: Path, *records: tuple[int, int, int, int]) -> Path:
    np.array(list(records), RECORD).tofile(path)
    return path


def assert_same(found: Workload, requests: list[int], sizes: list[int]) -> None:
    """Each request is a task with one input; nothing is written, and every block is on disk."""
    assert found.input_blocks.tolist() == requests
    assert found.input_starts.tolist() == list(range(len(requests) + 1))
    assert found.block_bytes.tolist() == sizes
    assert len(found.output_blocks) == 0
    assert (found.block_producer == -1).all()


def read(path: Path) -> Workload:
    return read_trace(path)[0]


# Numbers of blocks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.int32, np.uint64, np.int16, np.int64])
def test_blocks_are_numbered_as_they_are_first_seen(kind: type[np.integer[Any]]) -> None:
    keys = np.array([300, 3, 300, 7], kind)

    assert_same(workload_of_keys("t", keys, np.array([1, 2, 9, 4])), [0, 1, 0, 2], [1, 2, 4])


def test_keys_that_differ_in_high_bits_only_are_told_apart() -> None:
    keys = np.arange(5000, dtype=np.uint64) << np.uint64(50)

    assert workload_of_keys("t", keys, np.ones(5000, np.int64)).input_blocks.tolist() == list(range(5000))


def test_text_keys_are_numbered_too() -> None:
    keys = np.array(["b", "a", "b", ""], object)

    assert workload_of_keys("t", keys, np.ones(4, np.int64)).input_blocks.tolist() == [0, 1, 0, 2]


# oracleGeneral ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.oracleGeneral", "t.oracleGeneral.gz", "t.bin", "t.bin.gz"])
def test_a_written_trace_is_read_back(tmp_path: Path, name: str) -> None:
    write_oracle_general(tmp_path / name, KEYS, REQUEST_BYTES)

    found = read(tmp_path / name)

    assert_same(found, REQUESTS, SIZES)
    assert found.name == "t"


def test_records_hold_the_next_request_and_minus_one_for_none(tmp_path: Path) -> None:
    write_oracle_general(tmp_path / "t.bin", KEYS, REQUEST_BYTES)

    records = np.fromfile(tmp_path / "t.bin", RECORD)

    assert records["next"].tolist() == [2, 4, 5, -1, -1, -1]
    assert records["id"].tolist() == REQUESTS
    assert records["size_bytes"].tolist() == [5, 7, 5, 9, 7, 5]


def test_keys_of_64_bits_are_read(tmp_path: Path) -> None:
    write_oracle_general(tmp_path / "t.bin", np.array([2**63, 11, 4], np.uint64)[REQUESTS], REQUEST_BYTES)

    assert_same(read(tmp_path / "t.bin"), REQUESTS, SIZES)


def test_a_block_has_the_size_of_its_first_request(tmp_path: Path) -> None:
    path = write_records(tmp_path / "t.bin", (0, 9, 4, 2), (0, 8, 6, -1), (1, 9, 100, -1))

    assert_same(read_oracle_general(path), [0, 1, 0], [4, 6])


def test_a_size_of_zero_is_refused_by_record(tmp_path: Path) -> None:
    path = write_records(tmp_path / "t.bin", (0, 9, 4, -1), (0, 8, 0, -1))

    with pytest.raises(BadTrace, match=r"t\.bin: record 2 has size 0; expected at least one byte, drop"):
        read_oracle_general(path)


@pytest.mark.parametrize("num_bytes", [0, 1, 23, 25, 47])
def test_a_file_of_broken_records_is_refused(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "t.oracleGeneral"
    path.write_bytes(b"\1" * num_bytes)

    with pytest.raises(BadTrace, match=rf"{num_bytes} bytes; expected a multiple of 24 above zero, fetch"):
        read_oracle_general(path)


@pytest.mark.parametrize("num_bytes", [0, 30])
def test_a_compressed_file_of_broken_records_is_refused(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "t.bin.gz"
    path.write_bytes(gzip.compress(b"\1" * num_bytes))

    with pytest.raises(BadTrace, match=f"{num_bytes} bytes; expected a multiple of 24"):
        read_oracle_general(path)


@pytest.mark.parametrize("keep", [0, 5, 40])
def test_a_truncated_gzip_is_refused(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "t.bin.gz"
    write_oracle_general(path, KEYS, REQUEST_BYTES)
    path.write_bytes(path.read_bytes()[:keep])

    with pytest.raises(BadTrace, match=r"expected .*, fetch the file again"):
        read_oracle_general(path)


def test_a_plain_file_under_a_compressed_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.bin.gz"
    path.write_bytes(b"\1" * 48)

    with pytest.raises(BadTrace, match=r"cannot be (read|opened).*fetch the file again"):
        read_oracle_general(path)


@pytest.mark.parametrize("name", ["none.bin", "none.bin.gz", "none.csv"])
def test_a_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadTrace, match=r"none\..*(check the path|cannot be opened)"):
        read(tmp_path / name)


@pytest.mark.parametrize("name", ["folder.bin", "folder.bin.gz"])
def test_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()

    with pytest.raises(BadTrace, match=r"cannot be (read|opened)"):
        read(tmp_path / name)


# Tables -------------------------------------------------------------------------------------------------------------


def test_a_table_of_numbers_becomes_a_trace_of_unit_sizes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("key\n70\n3\n70\n")

    assert_same(read(path), [0, 1, 0], [1, 1])


def test_text_keys_and_sizes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"time,key,size_bytes\n0,x,4\n1,y,6\n2,x,5\n"))

    assert_same(read_key_table(path), [0, 1, 0], [4, 6])


def test_numbers_and_text_may_stand_in_one_column(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("key\n1\nx\n1\n")

    assert_same(read(path), [0, 1, 0], [1, 1])


def test_parquet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"key": [4, 4, 2], "size_bytes": [8, 8, 1]}), path)

    assert_same(read_key_table(path), [0, 0, 1], [8, 1])


@pytest.mark.parametrize(("cell", "problem"), [("0", "below 1"), ("many", "not a whole number"), ("", "empty")])
def test_a_size_that_is_none_is_refused(tmp_path: Path, cell: str, problem: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"key,size_bytes\n1,5\n2,{cell}\n")

    with pytest.raises(BadTrace, match=f"line 3, column 'size_bytes': .*{problem}"):
        read_key_table(path)


def test_a_missing_key_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("keys\n1\n")

    with pytest.raises(BadTrace, match="did you mean 'keys'"):
        read(path)


def test_an_empty_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("key,other\n1,a\n,b\n")

    with pytest.raises(BadTrace, match="line 3"):
        read(path)


def test_popularity_falls_as_the_law_says() -> None:
    counts = np.bincount(zipf_keys(200_000, 100, 1.0, np.random.default_rng(5)))[1:]
    expected = 1 / np.arange(1, 101) / (1 / np.arange(1, 101)).sum()

    assert np.abs(counts / counts.sum() - expected).max() < 0.005


def test_public_traces_are_read_as_they_are_shipped(tmp_path: Path) -> None:
    write_oracle_general(tmp_path / "t.oracleGeneral", np.array([0, 1, 0]), np.array([3, 7, 3]))
    with pa.CompressedOutputStream(str(tmp_path / "t.oracleGeneral.zst"), "zstd") as stream:
        stream.write((tmp_path / "t.oracleGeneral").read_bytes())

    packed, plain = (read(tmp_path / name) for name in ("t.oracleGeneral.zst", "t.oracleGeneral"))

    assert packed.input_blocks.tolist() == plain.input_blocks.tolist()
    assert packed.block_bytes.tolist() == [3, 7]
