"""Compiled kernels of straggler detection."""

from __future__ import annotations

from takeup.core.compiled import drop_stale_code

drop_stale_code(__file__)
