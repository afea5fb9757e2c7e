"""Small tables are read without pyarrow: with the same numbers, and the same errors, as with it."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from takeup.core.trace import TraceColumn, read_table
from takeup.core.trace.arrow import parse_csv
from takeup.core.trace.table import MOST_BYTES, read_plain
from takeup.errors import BadTrace

RATE, COUNT = TraceColumn("rate", "float", minimum=0), TraceColumn("count", "int")

plain_floats = st.floats(0, allow_infinity=False, allow_subnormal=False).map(repr)
plain_ints = st.integers(-(10**17), 10**17).map(str)
odd_cells = st.sampled_from(
    ["", " 1", "1 ", "+1", "1.", ".5", "1e5", "1E-3", "007", "-0", "0x1", "1_0", "nan", "inf", "1e999", "-1", "²", "a"]
)


def write(folder: str, text: str) -> Path:
    path = Path(folder) / "table.csv"
    path.write_bytes(text.encode())
    return path


@given(st.lists(st.tuples(plain_floats, plain_ints), min_size=1, max_size=20), st.sampled_from(["\n", "\r\n"]))
def test_plain_numbers_are_the_same_in_both_readers(rows: list[tuple[str, str]], ends: str) -> None:
    text = ends.join(["rate,other,count", *(f"{rate},x,{count}" for rate, count in rows)])
    with TemporaryDirectory() as folder:
        path = write(folder, text)
        plain, arrow = read_plain(path, [COUNT, RATE]), parse_csv(path, [COUNT, RATE])

    assert plain is not None
    assert list(plain) == ["count", "rate"]
    for name, array in plain.items():
        assert array.dtype == arrow[name].dtype
        assert array.tolist() == arrow[name].tolist()


@given(st.lists(st.tuples(odd_cells | plain_floats, odd_cells | plain_ints), min_size=1, max_size=4))
@example([("1e5", "007"), ("0", "-0")])
def test_what_the_small_reader_takes_the_large_one_reads_alike(rows: list[tuple[str, str]]) -> None:
    with TemporaryDirectory() as folder:
        path = write(folder, "\n".join(["rate,count", *(",".join(row) for row in rows)]))
        plain = read_plain(path, [RATE, COUNT])
        expected = None if plain is None else parse_csv(path, [RATE, COUNT])

    if plain is not None and expected is not None:
        assert {name: array.tolist() for name, array in plain.items()} == {
            name: array.tolist() for name, array in expected.items()
        }


@pytest.mark.parametrize(
    "text",
    [
        "rate\n",
        "rate,rate\n1,2\n",
        "other\n1\n",
        'rate\n"1"\n',
        "rate\n1\r2\n",
        "rate,note\n1,caf\u00e9\n",
        "rate\n1,2\n",
        "rate\n-1\n",
        "rate\nfast\n",
        "rate\n\n",
    ],
)
def test_anything_that_is_not_plain_is_left_to_the_large_reader(tmp_path: Path, text: str) -> None:
    assert read_plain(write(str(tmp_path), text), [RATE]) is None


def test_large_and_compressed_files_are_left_to_the_large_reader(tmp_path: Path) -> None:
    path = write(str(tmp_path), "rate\n" + "1.5\n" * (MOST_BYTES // 4))

    assert read_plain(path, [RATE]) is None
    assert read_plain(path.rename(tmp_path / "table.csv.gz"), [RATE]) is None


def test_text_is_left_to_the_large_reader(tmp_path: Path) -> None:
    path = write(str(tmp_path), "rate,name\n1,a\n")

    assert read_plain(path, [RATE, TraceColumn("name", "text")]) is None
    assert read_table(path, [TraceColumn("name", "text")])["name"].tolist() == ["a"]


def test_blank_lines_do_not_count(tmp_path: Path) -> None:
    path = write(str(tmp_path), "\nrate\n\n1.5\n\n2\n\n")

    assert read_table(path, [RATE])["rate"].tolist() == parse_csv(path, [RATE])["rate"].tolist() == [1.5, 2.0]


def test_a_table_that_was_read_may_be_written_to(tmp_path: Path) -> None:
    rates = read_table(write(str(tmp_path), "rate\n1\n2\n"), [RATE])["rate"]
    rates[0] = 5.0

    assert np.array_equal(rates, [5.0, 2.0])


def test_a_bad_cell_of_a_small_table_is_named_as_in_a_large_one(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="line 3, column 'rate': -5 is below 0"):
        read_table(write(str(tmp_path), "rate\n1\n-5\n"), [RATE])
