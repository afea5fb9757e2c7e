"""The compiled replay: policies that rank by the group table, in numba kernels; tests hold it equal to `plain`.

`replay` lays a workload out as arrays and runs its tasks; `layout` has the arrays and the heap that orders victims,
`group_table` the reference counts and ranks.
"""

from takeup.core.compiled import drop_stale_code

drop_stale_code(__file__)
