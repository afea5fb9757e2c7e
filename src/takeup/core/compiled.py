"""Compiled kernels: typed decorators around numba, and invalidation of its on-disk cache.

Numba compiles a function again when *its own* file has changed, but not when a function it calls, in another file, has.
A folder of kernels that call each other therefore drops its cache whenever any of its sources is newer.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numba import config, njit

Function = TypeVar("Function", bound=Callable[..., Any])


def kernel(function: Function) -> Function:
    """Compile a function that Python calls. It returns numbers or one array; more goes into arrays that it is given.

    Numba calls Python code to build a named tuple. Signal handlers run there, and one that raises, as Ctrl-C or a time
    limit does, would end the process with a segmentation fault; in a tuple of arrays it would be a `SystemError`.
    """
    return _compiled(function)


def inner(function: Function) -> Function:
    """Compile a function that only kernels call; without wrappers for Python it compiles in half the time."""
    return _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def bare(function: Function) -> Function:
    """Compile an inner function that allocates nothing.

    Arrays that arrive in a tuple are then not reference-counted at every access, which halves the time of a kernel
    whose state is such a tuple.
    """
    return _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)


def inlined(function: Function) -> Function:
    """A bare function that is copied into its callers: a call would first copy the whole tuple of arrays."""
    return _compiled(function, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False, forceinline=True)


def run_plain() -> None:
    """Run kernels that are imported from now on as plain Python: little work is done before they would be compiled.

    Divisions by zero give what they give in kernels, without a warning.
    """
    config.DISABLE_JIT = 1  # type: ignore[attr-defined]
    np.seterr(all="ignore")


def has_code(package: str) -> bool:
    """Whether kernels of a package were compiled before, on this machine."""
    return any(Path(__file__).parents[2].joinpath(*package.split(".")).glob("__pycache__/*.nbi"))


def _compiled(function: Function, **options: Any) -> Function:
    return cast(Function, njit(cache=True, error_model="numpy", **options)(function))


def drop_stale_code(module_file: str, *others: str) -> None:
    """Delete the compiled code of the folder of `module_file` if a source there or next to `others` is newer.

    Name the modules whose kernels are copied into those of this folder. Ignores OS errors.
    """
    folder, *more = (Path(file).parent for file in (module_file, *others))
    with suppress(OSError):
        sources = (path for place in (folder, *more) for path in place.glob("*.py"))
        newest_source = max((path.stat().st_mtime for path in sources), default=0.0)
        compiled = [*folder.glob("__pycache__/*.nbi"), *folder.glob("__pycache__/*.nbc")]
        if any(path.stat().st_mtime < newest_source for path in compiled):
            for path in compiled:
                path.unlink(missing_ok=True)
