"""One scheduling pass over a pool of GPUs: rules, arrays, and the Numba kernels that place and evict jobs.

rules.py             options of a scheduler               layout.py      a pool as arrays of records
scheduling_pass.py   one pass: queues, quota, starts      counters.py    start, evict and queue jobs
placement.py         nodes and victims for a gang         victims.py     which jobs to evict from one node
outcome.py           metrics of a replay                  snapshot.py    a pool of a state as arrays
"""

from takeup.core.compiled import drop_stale_code

drop_stale_code(__file__)
