"""Compiled replays: the policies of the parent package on flat arrays; tests check that their decisions are equal.

`flat_*` replay plain request streams, one kernel per policy, at tens of millions of requests per second. `jobs` replays
tasks with their groups under every policy; `layout` holds its arrays, `heap` and `queues` the order of victims, and
`table` the group table.
"""

from __future__ import annotations

from takeup.core.compiled import drop_stale_code

drop_stale_code(__file__)
