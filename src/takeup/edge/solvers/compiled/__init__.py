"""Compiled kernels of the solvers, all in one folder: numba's cache is dropped when any of these files is newer.

Joint policies, for rates by Shannon's formula and any group: `arrays` has the arrays, `plans` the energy of an upload
and partial plans, `greedy` the greedy choice, `local_search` the search for other devices, groups and orders, and
`joint_kernel` what Python calls. Bounds: `pricing` has the best columns at given prices, `branch_and_bound` the search
through all plans. Tests hold the kernel of `joint` equal to the plain policy.
"""

from takeup.core.compiled import drop_stale_code

drop_stale_code(__file__)
