"""Watch an unmodified PyTorch job: which rank or link is slow, what that costs, and what to do.

    in every rank                                    in the watcher process (job.py)
    attach/sitecustomize.py                          launch.py: starts the job with the environment that attaches,
         before ranks connect                             │     and swaps ranks at a restart
    hook.py, call_ends.py: calls ─> ring.py ────────> ring_reader.py: calls of all ranks, as logs
    pause.py: stops at a cut, tests  <── words ───── confirmation.py: requests a pause, and tests ranks and links
    batches.py: shares of the batch  <── words ───── session.py: the main loop, which carries out remedies
    an adaptive pipeline             <── words ────┘ run_queue.py: how long ranks waited for cores
                                                     reports.py: findings, metrics, traces
    other machines: agent.py forwards the records of their ranks
    gloo_shutdown.py: process groups are shut down without deadlock

Public names are loaded on first use; they need the package `torch`.
"""

from takeup.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
