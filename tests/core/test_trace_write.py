"""Writing trace tables: what is written reads the same, is whole, and is the same bytes every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.trace_tables import write_table
from takeup.core.trace import TraceColumn, read_table
from takeup.errors import BadTrace

NAMES = ["t.csv", "t.csv.gz", "t.parquet"]
COLUMNS = [TraceColumn("time_s", "float"), TraceColumn("n", "int"), TraceColumn("key", "text")]


def table(rows: list[tuple[float, int, str]]) -> dict[str, npt.NDArray[Any]]:
    return {
        "time_s": np.array([row[0] for row in rows], dtype=np.float64),
        "n": np.array([row[1] for row in rows], dtype=np.int64),
        "key": np.array([row[2] for row in rows], dtype=object),
    }


rows_of_a_table = st.lists(
    st.tuples(
        st.floats(allow_nan=False, allow_infinity=False),
        st.integers(-(2**63), 2**63 - 1),
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=6),
    ),
    max_size=8,
)


@pytest.mark.parametrize("name", NAMES)
@given(rows=rows_of_a_table)
def test_what_is_written_reads_the_same(
    tmp_path_factory: pytest.TempPathFactory, name: str, rows: list[tuple[float, int, str]]
) -> None:
    path = tmp_path_factory.mktemp("round") / name
    write_table(path, table(rows))
    back = read_table(path, COLUMNS)

    assert {key: values.tolist() for key, values in back.items()} == {k: v.tolist() for k, v in table(rows).items()}


@pytest.mark.parametrize("name", NAMES)
def test_the_same_columns_give_the_same_bytes(tmp_path: Path, name: str) -> None:
    for folder in ("first", "second"):
        write_table(tmp_path / folder / name, table([(0.5, 1, "a"), (1.5, 2, "b")]))

    assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes()


def test_csv_looks_as_a_person_would_write_it(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", {"n": np.array([1, 2]), "a, b": np.array([0.5, 2.0])})

    assert (tmp_path / "t.csv").read_text() == 'n,"a, b"\n1,0.5\n2,2\n'


@pytest.mark.parametrize("name", NAMES)
def test_fixed_width_texts_can_be_written(tmp_path: Path, name: str) -> None:
    write_table(tmp_path / name, {"key": np.array(["long", "b"])})

    assert read_table(tmp_path / name, [TraceColumn("key", "text")])["key"].tolist() == ["long", "b"]


@pytest.mark.parametrize("name", NAMES)
def test_nan_comes_back_as_what_was_not_measured(tmp_path: Path, name: str) -> None:
    write_table(tmp_path / name, {"x": np.array([1.0, np.nan])})
    back = read_table(tmp_path / name, [TraceColumn("x", "float", required=False)])

    np.testing.assert_array_equal(back["x"], [1.0, np.nan])


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"expected it to end in one of \.csv, \.csv\.gz, \.parquet"):
        write_table(tmp_path / "t.xlsx", table([]))
