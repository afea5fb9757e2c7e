"""Papers as they are reproduced, each once for all tests that look at it: some take half a minute.

Their tests carry `together`, so that one process runs them all.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import pytest

from takeup.core.report import Report
from takeup.papers import reproduce

__all__ = ["reproduced", "together"]

together = pytest.mark.xdist_group("papers")


@cache
def reproduced(paper: str) -> Report:
    """What `takeup reproduce PAPER` finds; edge, whose kernels are many, in a process of its own."""
    if paper != "edge":
        return reproduce(paper, quiet=True)
    words = [sys.executable, "-m", "takeup", "reproduce", paper, "--quiet", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode in {0, 1}, done.stderr
    return Report.from_json(done.stdout)
