"""First in, first out: one queue for all jobs, no quota, no evictions.

`FIFO` serves jobs in order of arrival, and backfills past one that does not fit now. `FIFO_STRICT` never backfills: a
gang as large as the pool then drains it first.
"""

from __future__ import annotations

from takeup.cluster.fleet.rules import TRY_SMALLER, SchedulerRules

FIFO_STRICT = SchedulerRules(one_queue=True)
FIFO = FIFO_STRICT._replace(high_failure=TRY_SMALLER)
