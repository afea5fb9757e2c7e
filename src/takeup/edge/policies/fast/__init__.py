"""Compiled plans: the joint policies on flat arrays, for the usual radio and any group of subcarriers.

`shapes` has the arrays, `oracle` the energy of one upload, `plans` adds and removes devices, `grow` the greedy choice,
`exchange` better groups and orders for the same devices, `search` other devices, `solve` the kernel that Python
calls, and `answers` the conversion to and from arrays. Tests hold `joint` equal to the plain policy one folder up.
"""

from __future__ import annotations

from takeup.core.compiled import drop_stale_code

drop_stale_code(__file__)
