"""Where there is no numba, kernels run as plain Python: slower, and with the same results. Import it before takeup."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

COMPILED = find_spec("numba") is not None


def _njit(**_: Any) -> Callable[[Any], Any]:
    return lambda function: function


if not COMPILED:
    stand_in = ModuleType("numba")
    stand_in.njit = _njit  # type: ignore[attr-defined]
    stand_in.__spec__ = ModuleSpec("numba", None)  # others may ask where it comes from
    sys.modules["numba"] = stand_in
