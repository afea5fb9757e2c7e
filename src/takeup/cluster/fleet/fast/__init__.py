"""Compiled kernels of a pool: `books` moves jobs in and out, `place` finds nodes, `victims` and `plan` make room.

`turn` is one scheduling pass: everything that a scheduler decides at one moment.
"""

from __future__ import annotations

from takeup.core.compiled import drop_stale_code

drop_stale_code(__file__)
