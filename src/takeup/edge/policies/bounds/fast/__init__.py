"""Compiled parts of the bounds.

`groups` has what uploads cost, `pricing` the best columns, `search` all plans, `turns` the best order on one core.
"""

from __future__ import annotations

from takeup.core.compiled import drop_stale_code

drop_stale_code(__file__)
