"""Compiled kernels of the solvers, all in one folder: numba's cache is dropped when any of these files is newer.

For all rates and groups: `uplinks` has the energy of an upload and the best of priced groups, `dual` prices with the
bound they prove, `core_schedules` a bound from whole schedules of a core, `neighbourhood` the search for plans.

Joint policies, for rates by Shannon's formula and any group: `arrays` has the arrays, `plans` the energy of an upload
and partial plans, `greedy` the greedy choice, `local_search` the search for other devices, groups and orders, and
`joint_kernel` what Python calls. Column generation: `pricing` has the best columns at
given prices; exact: `branch_and_bound` the search through all plans. Tests hold the kernel of `joint` equal to the
plain policy.
"""

from takeup.core.compiled import drop_stale_code

drop_stale_code(__file__)
