"""Reading trace tables that are as they should be."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.core.trace import TraceColumn, read_table

TIME = TraceColumn("time_s", "float", minimum=0)
SIZE = TraceColumn("size_bytes", "int", minimum=1)
KEY = TraceColumn("key", "text")


def csv_file(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["trace.csv", "trace.csv.gz", "TRACE.CSV", "my.trace.csv"])
def test_columns_come_typed_and_in_the_order_asked_for(tmp_path: Path, name: str) -> None:
    path = csv_file(tmp_path, "key,size_bytes,time_s\na,10,0.5\nb,20,1\n", name)
    table = read_table(path, [TIME, SIZE, KEY])

    assert list(table) == ["time_s", "size_bytes", "key"]
    assert [str(array.dtype) for array in table.values()] == ["float64", "int64", "object"]
    assert [array.tolist() for array in table.values()] == [[0.5, 1.0], [10, 20], ["a", "b"]]


def test_a_path_may_be_text(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "key\na\n")

    assert read_table(str(path), [KEY])["key"].tolist() == ["a"]


def test_columns_that_nobody_asked_for_are_not_looked_at(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "note,key\n???,a\n,b\n")

    assert read_table(path, [KEY])["key"].tolist() == ["a", "b"]


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffkey,n\na,1\n",
        "key,n\r\na,1\r\n",
        "key,n\na,1",
        "\nkey,n\n\na,1\n\n",
        '"key","n"\n"a","1"\n',
        "key,n\na, 1 \n",
    ],
    ids=["byte order mark", "CRLF", "no last newline", "blank lines", "quotes", "spaces around a number"],
)
def test_usual_variations_of_csv_read_the_same(tmp_path: Path, text: str) -> None:
    table = read_table(csv_file(tmp_path, text), [KEY, TraceColumn("n", "int")])

    assert (table["key"].tolist(), table["n"].tolist()) == (["a"], [1])


def test_text_may_hold_commas_quotes_and_line_breaks(tmp_path: Path) -> None:
    path = csv_file(tmp_path, 'key,n\n"a,""b""\nc",1\nünï,2\n')

    assert read_table(path, [KEY])["key"].tolist() == ['a,"b"\nc', "ünï"]


@pytest.mark.parametrize("ending", ["", "\n", "\n\n"])
def test_a_header_without_rows_gives_empty_columns(tmp_path: Path, ending: str) -> None:
    table = read_table(csv_file(tmp_path, f"time_s,size_bytes,key{ending}"), [TIME, SIZE, KEY])

    assert [(str(array.dtype), len(array)) for array in table.values()] == [("float64", 0), ("int64", 0), ("object", 0)]


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (TraceColumn("x", "int", required=False), [0, 0]),
        (TraceColumn("x", "int", required=False, default=-1), [-1, -1]),
        (TraceColumn("x", "int", required=False, default=0, minimum=1), [0, 0]),
        (TraceColumn("x", "float", required=False, default=2.5), [2.5, 2.5]),
        (TraceColumn("x", "text", required=False), ["", ""]),
        (TraceColumn("x", "text", required=False, default="none"), ["none", "none"]),
    ],
)
@pytest.mark.parametrize("text", ["key\na\nb\n", "key,x\na,\nb,\n"], ids=["no column", "empty cells"])
def test_what_an_optional_column_lacks_reads_as_its_default(
    tmp_path: Path, column: TraceColumn, expected: list[object], text: str
) -> None:
    assert read_table(csv_file(tmp_path, text), [KEY, column])["x"].tolist() == expected


def test_an_optional_number_without_default_reads_as_nan(tmp_path: Path) -> None:
    table = read_table(csv_file(tmp_path, "x,n\n1.5,1\n,2\nnan,3\n"), [TraceColumn("x", "float", required=False)])

    np.testing.assert_array_equal(table["x"], [1.5, np.nan, np.nan])


def test_a_text_default_longer_than_the_texts_is_not_cut(tmp_path: Path) -> None:
    table = read_table(
        csv_file(tmp_path, "x,n\na,1\n,2\n"), [TraceColumn("x", "text", required=False, default="unknown")]
    )

    assert table["x"].tolist() == ["a", "unknown"]


def test_large_whole_numbers_keep_every_digit(tmp_path: Path) -> None:
    table = read_table(
        csv_file(tmp_path, "n,m\n9007199254740993,1\n-9223372036854775808,\n"), [TraceColumn("n", "int")]
    )

    assert table["n"].tolist() == [9007199254740993, -(2**63)]


def test_large_whole_numbers_keep_every_digit_beside_empty_cells(tmp_path: Path) -> None:
    column = TraceColumn("n", "int", required=False, default=-1)
    table = read_table(csv_file(tmp_path, "n,m\n9007199254740993,1\n,2\n"), [column])

    assert table["n"].tolist() == [9007199254740993, -1]


@pytest.mark.parametrize("name", ["trace.csv", "trace.parquet"])
def test_arrays_can_be_changed_by_the_caller(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name.endswith(".csv"):
        path.write_text("n,key\n1,a\n")
    else:
        pq.write_table(pa.table({"n": [1], "key": ["a"]}), path)
    table = read_table(path, [TraceColumn("n", "int"), KEY])

    assert all(array.flags.writeable for array in table.values())


@pytest.mark.parametrize("type_", [pa.int8(), pa.uint32(), pa.int64(), pa.uint64()])
def test_parquet_whole_numbers_of_any_width_read_as_int64(tmp_path: Path, type_: pa.DataType) -> None:
    path = tmp_path / "trace.parquet"
    pq.write_table(pa.table({"n": pa.array([1, 2], type_)}), path)
    table = read_table(path, [TraceColumn("n", "int")])

    assert table["n"].dtype == np.int64
    assert table["n"].tolist() == [1, 2]


@pytest.mark.parametrize("type_", [pa.int32(), pa.float32(), pa.float64(), pa.decimal128(21, 2)])
def test_parquet_numbers_read_as_float64(tmp_path: Path, type_: pa.DataType) -> None:
    path = tmp_path / "trace.parquet"
    pq.write_table(pa.table({"x": pa.array([1, 2]).cast(type_)}), path)

    assert read_table(path, [TraceColumn("x", "float")])["x"].tolist() == [1.0, 2.0]


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet_texts_read_as_text(tmp_path: Path, type_: pa.DataType) -> None:
    path = tmp_path / "trace.parquet"
    pq.write_table(pa.table({"key": pa.array(["a", "b", "a"]).cast(type_)}), path)

    assert read_table(path, [KEY])["key"].tolist() == ["a", "b", "a"]


def test_parquet_nulls_in_an_optional_column_read_as_its_default(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    pq.write_table(pa.table({"n": [5, None], "m": [None, None]}), path)
    columns = [TraceColumn(name, "int", required=False, default=-1) for name in ("n", "m")]
    table = read_table(path, columns)

    assert (table["n"].tolist(), table["m"].tolist()) == ([5, -1], [-1, -1])


cells = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=5)


@given(st.lists(st.tuples(cells, st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False))))
def test_reading_agrees_with_the_standard_library(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int, float]]
) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([("key", "n", "x"), *rows])
    path = csv_file(tmp_path_factory.mktemp("oracle"), text.getvalue())
    table = read_table(path, [KEY, TraceColumn("n", "int"), TraceColumn("x", "float")])

    expected = list(csv.DictReader(io.StringIO(text.getvalue(), newline="")))
    assert table["key"].tolist() == [row["key"] for row in expected]
    assert table["n"].tolist() == [int(row["n"]) for row in expected]
    assert table["x"].tolist() == [float(row["x"]) for row in expected]
