"""Stray lines of native libraries: what they print to standard output by themselves goes to standard error instead.

A solver in C may print although it was told not to. That line would end up in the middle of our JSON. While the guard
is up, file descriptor 1 is a copy of descriptor 2, so other threads should not write results at the same time.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["native_output_to_stderr"]

STDOUT, STDERR = 1, 2


@contextmanager
def native_output_to_stderr() -> Iterator[None]:
    """Lead file descriptor 1 to where 2 leads. Where one of them is closed, there is nothing to guard."""
    try:
        kept = os.dup(STDOUT)
    except OSError:
        yield
        return
    try:
        _flush_native_buffers()
        with suppress(OSError):
            os.dup2(STDERR, STDOUT)
        yield
    finally:
        _flush_native_buffers()  # what C still holds back must not come out later
        os.dup2(kept, STDOUT)
        os.close(kept)


def _flush_native_buffers() -> None:
    with suppress(OSError, AttributeError, TypeError):  # a platform whose C library has no handle of its own
        ctypes.CDLL(None).fflush(None)
