"""Compiled replays: the policies on flat arrays, in numba kernels; tests check that their decisions equal `plain`.

Job graphs: `replay` lays a workload out as arrays and runs its tasks; `layout` has the arrays and the heap
that orders victims, `group_table` the reference counts and ranks. Request streams: `flat` replays a stream under
any policy, `flat_queues` has the kernels that keep queues and the miss curve of LRU for all cache sizes.
"""

from takeup.core.compiled import drop_stale_code

drop_stale_code(__file__)
