"""Records whose fields are attributes, in Python as in kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import typeof

from takeup.core.arrays import record

FIELDS = [("size", np.int64), ("price", np.float64)]


def test_a_field_is_read_and_written_as_an_attribute_whatever_numpy_calls_so() -> None:
    records: Any = np.zeros(3, record(FIELDS))
    one = records[1]
    one.size = 5
    one.price += 2.5

    assert records["size"].tolist() == [0, 5, 0]
    assert (records[1].size, records[1].price, records.copy()[1].size) == (5, 2.5, 5)


def test_kernels_see_the_same_record() -> None:
    assert typeof(np.zeros(3, record(FIELDS))) == typeof(np.zeros(3, np.dtype(FIELDS)))  # type: ignore[no-untyped-call]
