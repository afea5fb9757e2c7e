"""What is wrong with a trace is said with file, line, column and what was expected."""

from __future__ import annotations

import gzip
import random
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.core.trace import TraceColumn, read_table
from takeup.errors import BadTrace

TIME = TraceColumn("time_s", "float", minimum=0)
SIZE = TraceColumn("size_bytes", "int", minimum=1)
KEY = TraceColumn("key", "text")
COLUMNS = [TIME, SIZE, KEY]
HEADER = "time_s,size_bytes,key\n"


def problem(path: Path, columns: list[TraceColumn] = COLUMNS) -> str:
    """The message of reading `path`, from the file's name on."""
    with pytest.raises(BadTrace) as caught:
        read_table(path, columns)
    return str(caught.value).removeprefix(f"{path.parent}/")


def problem_in(folder: Path, text: str | bytes, name: str = "t.csv") -> str:
    data = text if isinstance(text, bytes) else text.encode()
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return problem(folder / name)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ("1,2,a\nx,3,b\n", "line 3, column 'time_s': 'x' is not a number"),
        ("1,2,a\n1,2.5,b\n", "line 3, column 'size_bytes': '2.5' is not a whole number"),
        ("1,+2,a\n", "line 2, column 'size_bytes': '+2' is not a whole number"),
        ("1,9223372036854775808,a\n", "line 2, column 'size_bytes': '9223372036854775808' is not a whole number"),
        ("1,1e3,a\n", "line 2, column 'size_bytes': '1e3' is not a whole number"),
        ("1_0,1,a\n", "line 2, column 'time_s': '1_0' is not a number"),
        ("inf,1,a\n", "line 2, column 'time_s': 'inf' is not a number"),
        ("nan,1,a\n", "line 2, column 'time_s': the cell is empty, but every row needs a number here"),
        ("1,2,a\n1,-5,b\n", "line 3, column 'size_bytes': -5 is below 1, the least this column allows"),
        ("-0.5,2,a\n", "line 2, column 'time_s': -0.5 is below 0, the least this column allows"),
        ("1,,a\n", "line 2, column 'size_bytes': the cell is empty, but every row needs a whole number here"),
        ("1,2,\n", "line 2, column 'key': the cell is empty, but every row needs text in UTF-8 here"),
        ("1, ,a\n", "line 2, column 'size_bytes': ' ' is not a whole number"),
        ("1,2,a\n1,2\n", "line 3: found 2 cells where the header has 3"),
        ("1,2,a\n1,2,b,c\n", "line 3: found 4 cells where the header has 3"),
        ("1,2,a\n\n\n1,x,b\n", "line 5, column 'size_bytes': 'x' is not a whole number"),
        ('1,2,"a\nb\nc"\n1,x,b\n', "line 5, column 'size_bytes': 'x' is not a whole number"),
        ('1,x,"a\nb"\n', "line 2, column 'size_bytes': 'x' is not a whole number"),
        ("1,-1,a\nx,2,b\n", "line 2, column 'size_bytes': -1 is below 1, the least this column allows"),
    ],
)
def test_the_first_bad_spot_is_named(tmp_path: Path, name: str, rows: str, expected: str) -> None:
    assert problem_in(tmp_path, HEADER + rows, name) == f"{name}, {expected}"


def test_lines_count_from_the_byte_order_mark_and_leading_blank_lines(tmp_path: Path) -> None:
    message = problem_in(tmp_path, "\ufeff\n" + HEADER + "1,x,a\n")

    assert message == "t.csv, line 3, column 'size_bytes': 'x' is not a whole number"


@given(st.integers(0, 300), st.sampled_from(["time_s", "size_bytes"]), st.randoms(use_true_random=False))
def test_a_single_bad_cell_anywhere_is_found(
    tmp_path_factory: pytest.TempPathFactory, row: int, column: str, chance: random.Random
) -> None:
    rows = [[str(chance.random()), str(chance.randint(1, 99)), "k"] for _ in range(301)]
    rows[row][["time_s", "size_bytes"].index(column)] = "bad"
    path = tmp_path_factory.mktemp("spot") / "t.csv"
    path.write_text(HEADER + "".join(",".join(cells) + "\n" for cells in rows))

    assert problem(path).startswith(f"t.csv, line {row + 2}, column {column!r}: 'bad' is not a")


def test_a_missing_column_names_the_nearest_and_all_there_are(tmp_path: Path) -> None:
    message = problem_in(tmp_path, "time_s,size_byte,key\n1,2,a\n")

    assert message == (
        "t.csv, line 1: no column 'size_bytes'; did you mean 'size_byte'? (known: time_s, size_byte, key)"
    )


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    message = problem_in(tmp_path, "time_s,size_bytes,key,key\n1,2,a,b\n")

    assert message == "t.csv, line 1, column 'key': this name heads more than one column; keep one"


def test_text_that_is_not_utf8_is_named_where_it_stands(tmp_path: Path) -> None:
    message = problem_in(tmp_path, HEADER.encode() + b"1,2,a\n1,2,caf\xe9\n")

    assert message == r"t.csv, line 3, column 'key': 'caf\xe9' is not UTF-8; save the file as UTF-8"


def test_a_header_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    message = problem_in(tmp_path, "time_s,size_bytes,key\n".encode("utf-16"))

    assert message == "t.csv, line 1: the header is not readable text in UTF-8; save the file as UTF-8"


def test_a_gzip_file_under_a_plain_name_is_refused(tmp_path: Path) -> None:
    message = problem_in(tmp_path, gzip.compress(HEADER.encode()))

    assert message.startswith("t.csv, line 1: the header is not readable text")


def test_a_cell_beyond_all_bounds_is_refused_with_its_line(tmp_path: Path) -> None:
    message = problem_in(tmp_path, HEADER + "1,2,a\n1,2," + "x" * 200_000 + "\n1,x,a\n")

    assert message == "t.csv, line 3: is not CSV: field larger than field limit (131072)"


@pytest.mark.parametrize("text", ["\n\n", '""\n1\n', ","])
def test_a_file_without_a_header_is_refused(tmp_path: Path, text: str) -> None:
    assert "is empty; expected a header line" in problem_in(tmp_path, text)


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet"])
def test_an_empty_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()

    assert problem(tmp_path / name) == f"{name}: is empty; expected a table"


def test_gzip_of_nothing_is_refused(tmp_path: Path) -> None:
    assert "is empty; expected a header line" in problem_in(tmp_path, "", "t.csv.gz")


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet", "t.txt"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    assert problem(tmp_path / name) == f"{name}: cannot be opened: No such file or directory; check the path"


def test_a_directory_is_not_a_trace(tmp_path: Path) -> None:
    (tmp_path / "t.csv").mkdir()

    assert problem(tmp_path / "t.csv") == "t.csv: is a directory; name a file in it"


@pytest.mark.parametrize("name", ["t.txt", "t", "t.gz", "t.json"])
def test_an_unknown_format_lists_the_known_ones(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(HEADER)

    assert problem(tmp_path / name) == (
        f"{name}: the name does not tell the format; expected it to end in one of .csv, .csv.gz, .parquet"
    )


def many_rows() -> bytes:
    chance = random.Random(1)
    return (HEADER + "".join(f"{chance.random()},{chance.randint(1, 10**9)},k\n" for _ in range(20_000))).encode()


@pytest.mark.parametrize("share", [0.2, 0.9])
def test_a_truncated_gzip_file_says_how_far_it_can_be_read(tmp_path: Path, share: float) -> None:
    data = gzip.compress(many_rows())
    (tmp_path / "t.csv.gz").write_bytes(data[: int(len(data) * share)])
    message = problem(tmp_path / "t.csv.gz")

    found = re.fullmatch(r"t\.csv\.gz, line (\d+): the compressed data ends early; fetch the file again", message)
    assert found is not None
    assert share - 0.15 < int(found[1]) / 20_000 < share + 0.05


def test_a_gzip_file_cut_inside_its_checksum_is_truncated(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(f"{HEADER}1,2,a\n".encode())[:-3])

    assert "the compressed data ends early" in problem(tmp_path / "t.csv.gz")


@pytest.mark.parametrize("place", [0, 0.5, -6], ids=["magic", "middle", "checksum"])
def test_a_damaged_gzip_file_is_refused(tmp_path: Path, place: float) -> None:
    data = bytearray(gzip.compress(many_rows()))
    start = int(len(data) * place) if place >= 0 else len(data) + int(place)
    data[start : start + 4] = bytes(byte ^ 0xFF for byte in data[start : start + 4])
    (tmp_path / "t.csv.gz").write_bytes(data)
    message = problem(tmp_path / "t.csv.gz")

    assert re.match(r"t\.csv\.gz(, line \d+)?: the compressed data (is damaged \(.+\)|ends early); fetch", message)


def test_a_file_that_is_not_gzip_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_text(HEADER)

    assert problem(tmp_path / "t.csv.gz").startswith("t.csv.gz: the compressed data is damaged (Not a gzipped file")


def parquet(folder: Path, **columns: pa.Array) -> Path:
    good = {"time_s": pa.array([0.5, 1]), "size_bytes": pa.array([1, 2]), "key": pa.array(["a", "b"])}
    pq.write_table(pa.table(good | columns), folder / "t.parquet")
    return folder / "t.parquet"


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"size_bytes": pa.array([1.0, 2.0])}, "column 'size_bytes': holds double, expected int"),
        ({"time_s": pa.array(["a", "b"])}, "column 'time_s': holds string, expected float"),
        ({"key": pa.array([1, 2])}, "column 'key': holds int64, expected text"),
        ({"key": pa.array([b"a", b"b"])}, "column 'key': holds binary, expected text"),
        ({"size_bytes": pa.array([1, None])}, "column 'size_bytes': row 2: the cell is empty"),
        ({"size_bytes": pa.array([1, 0])}, "column 'size_bytes': row 2: 0 is below 1, the least this column allows"),
        ({"time_s": pa.array([0.5, float("nan")])}, "column 'time_s': row 2: the cell is empty"),
        ({"time_s": pa.array([float("inf"), 1])}, "column 'time_s': row 1: 'inf' is not a number"),
        ({"key": pa.array(["a", ""])}, "column 'key': row 2: the cell is empty"),
        ({"size_bytes": pa.array([1, 2**63], pa.uint64())}, "column 'size_bytes': does not fit into int64"),
    ],
)
def test_what_is_wrong_in_parquet_names_column_and_row(
    tmp_path: Path, columns: dict[str, pa.Array], expected: str
) -> None:
    assert problem(parquet(tmp_path, **columns)).startswith(f"t.parquet, {expected}")


def test_a_column_missing_from_parquet_names_the_nearest(tmp_path: Path) -> None:
    path = parquet(tmp_path)

    assert problem(path, [TraceColumn("keys", "text")]) == (
        "t.parquet: no column 'keys'; did you mean 'key'? (known: time_s, size_bytes, key)"
    )


@pytest.mark.parametrize("damage", ["cut", "not parquet", "middle"])
def test_damaged_parquet_is_refused(tmp_path: Path, damage: str) -> None:
    path = parquet(tmp_path)
    data = path.read_bytes()
    path.write_bytes(
        {"cut": data[:-20], "not parquet": b"hello", "middle": data[:4] + b"\xff" * 60 + data[64:]}[damage]
    )

    assert problem(path).startswith("t.parquet: is damaged, or not Parquet (")
