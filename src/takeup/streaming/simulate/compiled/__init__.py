"""Compiled kernels of the simulators: `tagged` videos, `events` and `slots` of a whole cell, `adaptive` players."""

from takeup.core.compiled import drop_stale_code

drop_stale_code(__file__)
