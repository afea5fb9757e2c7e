"""Triton kernels; this package holds Triton, or a stub that lets kernels be imported where it is missing.

Imported only where there is a CUDA device, and by tests.
"""

from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

_HAS_TRITON = find_spec("triton") is not None

triton: Any = import_module("triton") if _HAS_TRITON else SimpleNamespace(jit=lambda kernel: kernel)
tl: Any = import_module("triton.language") if _HAS_TRITON else SimpleNamespace(constexpr=float)
