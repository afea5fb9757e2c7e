"""The names of a table's columns, read without reading the table."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from takeup.core.trace import column_names
from takeup.errors import BadTrace


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("key,size\n1,2\n", ["key", "size"]),
        ("key,size\n", ["key", "size"]),
        ("key", ["key"]),
        ("\n\nkey,size\n1,2\n", ["key", "size"]),
        ('"a, b",c\n1,2\n', ["a, b", "c"]),
        ("\ufeffkey,size\n1,2\n", ["key", "size"]),
        ("key,key\n1,2\n", ["key", "key"]),
        ("key,size\r\n1,2\r\n", ["key", "size"]),
    ],
)
def test_the_header_of_a_csv_file_names_the_columns(tmp_path: Path, text: str, names: list[str]) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode())

    assert column_names(path) == names
    assert column_names(str(path)) == names


def test_the_rest_of_the_table_is_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("key,size\n1,2\nnonsense\n1,2,3,4\n")

    assert column_names(path) == ["key", "size"]


def test_a_compressed_table_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "table.csv.gz"
    path.write_bytes(gzip.compress(b"task,inputs\nt,a\n"))

    assert column_names(path) == ["task", "inputs"]


def test_a_parquet_file_knows_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"key": [1], "size": [2]}), path)

    assert column_names(path) == ["key", "size"]


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="cannot be opened: No such file or directory; check the path"):
        column_names(tmp_path / "none.csv")


def test_a_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="is a directory; name a file in it"):
        column_names(tmp_path)


@pytest.mark.parametrize("name", ["table.csv", "table.csv.gz", "table.parquet"])
def test_an_empty_file_has_no_columns(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()

    with pytest.raises(BadTrace, match="is empty; expected a table"):
        column_names(tmp_path / name)


def test_a_file_of_blank_lines_has_no_header(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("\n\n\n")

    with pytest.raises(BadTrace, match="expected a header line with the names of the columns"):
        column_names(tmp_path / "table.csv")


def test_bytes_that_are_no_text_are_no_header(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(b"k\xffy,size\n1,2\n")

    with pytest.raises(BadTrace, match="the header is not readable text in UTF-8"):
        column_names(tmp_path / "table.csv")


@pytest.mark.parametrize("name", ["table.parquet", "table.csv.gz"])
def test_a_damaged_file_is_said(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PAR1 or gzip, but not really")

    with pytest.raises(BadTrace, match="damaged"):
        column_names(tmp_path / name)


def test_a_name_that_tells_no_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "table.txt").write_text("key\n1\n")

    with pytest.raises(BadTrace, match=r"the name does not tell the format; expected it to end in one of \.csv"):
        column_names(tmp_path / "table.txt")
