"""Compiled kernels of the solvers, all in one folder: numba's cache is dropped when any of these files is newer.

`uplinks` has the energy of an upload and the best of priced groups, `dual` prices with the bound they prove,
`core_schedules` a bound from whole schedules of a core, `neighbourhood` the search for plans. Column generation:
`pricing` has the best columns at given prices; exact: `branch_and_bound` the search through all plans.
"""

from takeup.core.compiled import drop_stale_code

drop_stale_code(__file__)
