"""First in, first out: one queue for all jobs, no quota, nobody is evicted.

`FIFO` serves jobs in the order in which they came, and passes over one that does not fit now. `FIFO_STRICT` lets nobody
overtake: a gang as large as the pool then empties it first.
"""

from __future__ import annotations

from takeup.cluster.fleet.rules import TRY_SMALLER, Rules

__all__ = ["FIFO", "FIFO_STRICT"]

FIFO_STRICT = Rules(one_queue=True)
FIFO = FIFO_STRICT._replace(high_failure=TRY_SMALLER)
