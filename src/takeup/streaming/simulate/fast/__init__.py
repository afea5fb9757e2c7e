"""Compiled kernels of the simulators: `walk` for tagged videos, `events` for a whole cell, `slots` for its slots."""

from __future__ import annotations

from takeup.core.compiled import drop_stale_code

drop_stale_code(__file__)
