"""Watch an unmodified PyTorch job: which rank or link is slow, what that costs, and what to do.

    in every rank                                    in the watcher process
    attach/sitecustomize.py, finder.py               launch.py: starts the job with the environment that attaches
         before ranks connect                             │
    hook.py (cuda.py): sees calls ──> ring.py ──────> rows.py, gather.py: calls of all ranks, as logs
    pause.py: stops at a cut, tests  <── words ───── confirm.py: requests a pause, and tests ranks and links
    batches.py: shares of the batch  <── words ───── remedy.py: gives a slow rank less work, a pipeline another schedule
    requests.py: to a pipeline       <── words ────┘ restart.py: when a restart pays, and the new rank assignment
                                                     cores.py: how long ranks waited for cores
                                                     session.py: the main loop; explain.py: reports
    other machines: agent.py forwards the records of their ranks

Public names are loaded on first use; they need the package `torch`.
"""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
