"""Papers as they are reproduced, each once for all tests that look at it: some take half a minute.

Their tests carry `together`, so that one process runs them all.
"""

from __future__ import annotations

from functools import cache

import pytest

from takeup.core.report import Report
from takeup.papers import reproduce

__all__ = ["reproduced", "together"]

together = pytest.mark.xdist_group("papers")


@cache
def reproduced(paper: str) -> Report:
    """What `takeup reproduce PAPER` finds."""
    return reproduce(paper, quiet=True)
