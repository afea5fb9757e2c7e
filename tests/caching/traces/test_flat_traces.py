"""Flat traces come back as they were written, and files that are not traces are refused in one sentence."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.caching.model import FlatTrace
from takeup.caching.traces.flat import (
    dense_ids,
    read_flat,
    read_flat_csv,
    read_oracle_general,
    write_oracle_general,
)
from takeup.caching.traces.generators import zipf_trace
from takeup.errors import BadInput, BadTrace

REQUESTS = [0, 1, 0, 2, 1, 0]
SIZES = [5, 7, 9]
RECORD = np.dtype([("second", "<u4"), ("id", "<u8"), ("size_bytes", "<u4"), ("next", "<i8")])


@pytest.fixture
def trace() -> FlatTrace:
    return FlatTrace("small", np.array(REQUESTS, np.int32), np.array(SIZES))


def write_records(path: Path, *records: tuple[int, int, int, int]) -> Path:
    np.array(list(records), RECORD).tofile(path)
    return path


def assert_same(found: FlatTrace, requests: list[int], sizes: list[int]) -> None:
    assert found.requests.dtype == np.int32
    assert found.requests.tolist() == requests
    assert found.block_bytes.dtype == np.int64
    assert found.block_bytes.tolist() == sizes


# Renumbering --------------------------------------------------------------------------------------------------------


def first_seen(keys: list[int]) -> tuple[list[int], list[int]]:
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return [numbers[key] for key in keys], list(numbers)


@given(keys=st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)))
def test_numbers_follow_the_order_of_first_appearance(keys: list[int]) -> None:
    ids, uniques = dense_ids(np.array(keys, np.int64))

    assert (ids.tolist(), uniques.tolist()) == first_seen(keys)


@pytest.mark.parametrize("kind", [np.int32, np.uint64, np.int16, np.uint8])
def test_every_kind_of_integer_keeps_its_kind(kind: type[np.integer[pa.DataType]]) -> None:
    keys = np.array([7, 3, 7, 255 if kind is np.uint8 else 300], kind)

    ids, uniques = dense_ids(keys)

    assert ids.tolist() == [0, 1, 0, 2]
    assert uniques.dtype == kind
    assert uniques.tolist() == [7, 3, keys[3]]


def test_the_table_grows_with_the_keys() -> None:
    keys = np.random.default_rng(2).integers(0, 2**62, 50_000)
    keys = np.concatenate((keys, keys[::-1], keys << 1))

    ids, uniques = dense_ids(keys)

    assert (uniques[ids] == keys).all()
    assert len(uniques) == len(np.unique(keys))


def test_keys_that_differ_in_high_bits_only_are_told_apart() -> None:
    keys = np.arange(5000, dtype=np.uint64) << np.uint64(50)

    assert dense_ids(keys)[0].tolist() == list(range(5000))


def test_text_keys_are_numbered_too() -> None:
    ids, uniques = dense_ids(np.array(["b", "a", "b", ""], object))

    assert ids.dtype == np.int32
    assert ids.tolist() == [0, 1, 0, 2]
    assert uniques.tolist() == ["b", "a", ""]


# oracleGeneral ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["t.oracleGeneral", "t.oracleGeneral.gz", "t.bin", "t.bin.gz"])
def test_a_written_trace_is_read_back(tmp_path: Path, trace: FlatTrace, name: str) -> None:
    write_oracle_general(tmp_path / name, trace)

    found = read_flat(tmp_path / name)

    assert_same(found, REQUESTS, SIZES)
    assert found.name == "t"


def test_records_hold_the_next_request_and_minus_one_for_none(tmp_path: Path, trace: FlatTrace) -> None:
    write_oracle_general(tmp_path / "t.bin", trace)

    records = np.fromfile(tmp_path / "t.bin", RECORD)

    assert records["next"].tolist() == [2, 4, 5, -1, -1, -1]
    assert records["id"].tolist() == REQUESTS
    assert records["size_bytes"].tolist() == [5, 7, 5, 9, 7, 5]


def test_own_keys_are_written_instead_of_numbers(tmp_path: Path, trace: FlatTrace) -> None:
    write_oracle_general(tmp_path / "t.bin", trace, keys=np.array([2**63, 11, 4], np.uint64))

    assert np.fromfile(tmp_path / "t.bin", RECORD)["id"].tolist() == [2**63, 11, 2**63, 4, 11, 2**63]
    assert_same(read_oracle_general(tmp_path / "t.bin"), REQUESTS, SIZES)


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
def test_a_truncated_gzip_is_refused(tmp_path: Path, trace: FlatTrace, keep: int) -> None:
    path = tmp_path / "t.bin.gz"
    write_oracle_general(path, trace)
    path.write_bytes(path.read_bytes()[:keep])

    with pytest.raises(BadTrace, match=r"expected .*, fetch the file again"):
        read_oracle_general(path)


def test_a_plain_file_under_a_compressed_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.bin.gz"
    path.write_bytes(b"\1" * 48)

    with pytest.raises(BadTrace, match=r"cannot be read .*fetch the file again"):
        read_oracle_general(path)


@pytest.mark.parametrize("name", ["none.bin", "none.bin.gz", "none.csv"])
def test_a_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadTrace, match=r"none\..*check the path"):
        read_flat(tmp_path / name)


@pytest.mark.parametrize("name", ["folder.bin", "folder.bin.gz"])
def test_a_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()

    with pytest.raises(BadTrace, match="cannot be read"):
        read_flat(tmp_path / name)


def test_a_size_beyond_the_format_is_refused(tmp_path: Path) -> None:
    large = FlatTrace("large", np.array([0], np.int32), np.array([2**32]))

    with pytest.raises(BadInput, match="4294967296 bytes does not fit"):
        write_oracle_general(tmp_path / "t.bin", large)
    assert not (tmp_path / "t.bin").exists()


def test_an_unknown_ending_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"does not tell the format; .*\.parquet, \.oraclegeneral"):
        read_flat(tmp_path / "trace.txt")


# Tables -------------------------------------------------------------------------------------------------------------


def test_a_table_of_numbers_becomes_a_trace_of_unit_sizes(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("key\n70\n3\n70\n")

    assert_same(read_flat(path), [0, 1, 0], [1, 1])


def test_text_keys_and_sizes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"time,object,length\n0,x,4\n1,y,6\n2,x,5\n"))

    assert_same(read_flat_csv(path, key="object", size="length"), [0, 1, 0], [4, 6])


def test_numbers_and_text_may_stand_in_one_column(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("key\n1\nx\n1\n")

    assert_same(read_flat(path), [0, 1, 0], [1, 1])


def test_parquet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"key": [4, 4, 2], "size_bytes": [8, 8, 1]}), path)

    assert_same(read_flat_csv(path, size="size_bytes"), [0, 0, 1], [8, 1])


@pytest.mark.parametrize(("cell", "problem"), [("0", "below 1"), ("many", "not a whole number"), ("", "empty")])
def test_a_size_that_is_none_is_refused(tmp_path: Path, cell: str, problem: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"key,size_bytes\n1,5\n2,{cell}\n")

    with pytest.raises(BadTrace, match=f"line 3, column 'size_bytes': .*{problem}"):
        read_flat_csv(path, size="size_bytes")


def test_a_missing_key_column_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("keys\n1\n")

    with pytest.raises(BadTrace, match="did you mean 'keys'"):
        read_flat(path)


def test_an_empty_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("key,other\n1,a\n,b\n")

    with pytest.raises(BadTrace, match="line 3"):
        read_flat(path)


# Zipf ---------------------------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_trace() -> None:
    first = zipf_trace(1000, 50, 0.9, np.random.default_rng(4))
    second = zipf_trace(1000, 50, 0.9, np.random.default_rng(4))

    assert first.requests.tolist() == second.requests.tolist()
    assert first.block_bytes.tolist() == [1] * first.num_blocks


def test_popularity_falls_as_the_law_says() -> None:
    trace = zipf_trace(200_000, 100, 1.0, np.random.default_rng(5))
    shares = np.sort(np.bincount(trace.requests))[::-1] / len(trace.requests)
    expected = 1 / np.arange(1, 101) / (1 / np.arange(1, 101)).sum()

    assert np.abs(shares - expected).max() < 0.005


def test_a_flat_law_requests_all_objects_alike() -> None:
    counts = np.bincount(zipf_trace(100_000, 10, 0.0, np.random.default_rng(6)).requests)

    assert len(counts) == 10
    assert np.abs(counts - 10_000).max() < 500


def test_public_traces_are_read_as_they_are_shipped(tmp_path: Path) -> None:
    trace = FlatTrace("t", np.array([0, 1, 0], np.int32), np.array([3, 7], np.int64))
    write_oracle_general(tmp_path / "t.oracleGeneral", trace)
    with pa.CompressedOutputStream(str(tmp_path / "t.oracleGeneral.zst"), "zstd") as stream:
        stream.write((tmp_path / "t.oracleGeneral").read_bytes())

    packed, plain = (read_flat(tmp_path / name) for name in ("t.oracleGeneral.zst", "t.oracleGeneral"))

    assert packed.requests.tolist() == plain.requests.tolist()
    assert packed.block_bytes.tolist() == [3, 7]
