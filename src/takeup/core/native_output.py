"""Redirect what native libraries print to standard output to standard error.

A solver in C may print although its output is disabled. That would corrupt our JSON. While the redirection is
active, file descriptor 1 is a copy of descriptor 2, so other threads should not write results at the same time.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

STDOUT, STDERR = 1, 2


@contextmanager
def native_output_to_stderr() -> Iterator[None]:
    """Redirect file descriptor 1 to 2 within the block; a no-op if one of them is closed."""
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
        _flush_native_buffers()  # flush C's buffer now, so that it is not written later
        os.dup2(kept, STDOUT)
        os.close(kept)


def _flush_native_buffers() -> None:
    with suppress(OSError, AttributeError, TypeError):  # a platform whose C library has no handle of its own
        ctypes.CDLL(None).fflush(None)
