"""First in, first out: one queue for all jobs, no quota, nobody is evicted.

`FIFO` lets nobody overtake a job that does not fit; `FIFO_BACKFILL` lets those pass that ask for less.
"""

from __future__ import annotations

from takeup.cluster.fleet.rules import TRY_SMALLER, Rules

__all__ = ["FIFO", "FIFO_BACKFILL"]

FIFO = Rules(one_queue=True)
FIFO_BACKFILL = FIFO._replace(high_failure=TRY_SMALLER)
