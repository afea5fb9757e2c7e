"""Compiled kernels of pipeline timing: `traffic` moves messages, `replay` runs a given order, `generate` makes one.

Times are integer nanoseconds: comparisons give the same result on every machine, so all ranks derive the same schedule.
"""

from __future__ import annotations

from takeup.core.compiled import drop_stale_code

drop_stale_code(__file__)
