"""PyTorch: a pipeline whose ranks change their schedule together while they train.

    every iteration                               every few iterations
    adapter.py: the runtime of PyTorch            adaptive.py: all measurements become one profile of integers;
         │ operations      │ messages               plan, and decide whether to switch
    stopwatch.py      messages.py  ----------->     AdaptiveSchedule, which users call
                           │                              │ schedule, slow links
    transport.py: a route for every message  <────────────┘

Public names are loaded on first use; they need the package `torch`.
"""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
