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

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
