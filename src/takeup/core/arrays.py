"""Types of numpy arrays, named once, and records whose fields are attributes."""

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Complexes = npt.NDArray[np.complex128]


def record(fields: Sequence[tuple[str, Any]]) -> np.dtype[np.void]:
    """The type of a record whose fields are attributes also in Python, as they are in kernels."""
    names = [name for name, _ in fields]
    kind = type("Record", (np.void,), {name: property(itemgetter(name), _setter(name)) for name in names})
    return np.dtype((kind, np.dtype(list(fields))))


def _setter(name: str) -> Callable[[np.void, Any], None]:
    return lambda one, value: one.__setitem__(name, value)
