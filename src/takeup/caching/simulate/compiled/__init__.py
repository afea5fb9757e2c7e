"""The compiled replay: policies that rank by the group table, in numba kernels; tests hold it equal to `plain`.

`replay` lays a workload out as arrays and runs its tasks; `layout` has the arrays and the heap that orders victims,
`group_table` the reference counts and ranks. Constants of `policies/dag.py` are compiled in: after a
change of one, change a file here too, or kernels of before stay on disk.
"""

from takeup.core.compiled import drop_stale_code

drop_stale_code(__file__)
