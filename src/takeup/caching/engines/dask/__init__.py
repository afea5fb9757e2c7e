"""Dask: the spill order of a running cluster follows a policy. `install(client)` is the whole setup.

    scheduler                                    each worker
    announce.py: future reads, in order    --->  worker.py: receives them, tracks local tasks
                 (every 10 ms)                        │
                                                 guide.py: group table and ranks ──> order.py: a lazy heap
                                                      │                              leaving.py: pending frees
                                                      │ victim
                                                 spill.py, copies.py: the worker's own spill buffer, swapped in place

Public names are loaded on first use; they need the packages `dask` and `distributed`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from takeup.core.lazy import lazy_names

if TYPE_CHECKING:
    from takeup.caching.engines.dask.client import counters, install, uninstall
    from takeup.caching.engines.dask.counts import Counters

__all__ = ["Counters", "counters", "install", "uninstall"]

_HOMES = {"client": ("counters", "install", "uninstall"), "counts": ("Counters",)}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
