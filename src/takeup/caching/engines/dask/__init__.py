"""Dask: the spill order of a running cluster follows a policy. `install(client)` is the whole setup.

    plugins.py: install, uninstall, counters

    scheduler                                     each worker
    plugins.py, Announcer: future reads, ---->    plugins.py, SpillPlugin: receives them, tracks local tasks
                in order, every 10 ms                  │
                                                  spill_guide.py: group table, ranks ──> victim_order.py: a lazy heap,
                                                       │                                 pending frees
                                                       │ victim
                                                  spill.py: the worker's own spill buffer, swapped in place,
                                                            clean copies

Public names are loaded on first use; they need the packages `dask` and `distributed`.
"""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
