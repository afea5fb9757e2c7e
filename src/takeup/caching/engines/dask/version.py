"""Whether the installed Dask is one that the plug-in knows; `takeup doctor` asks."""

from __future__ import annotations

from tempfile import TemporaryDirectory

from distributed.spill import SpillBuffer

from takeup.caching.engines.dask import spill

__all__ = ["why_not"]


def why_not(distributed_version: str) -> str:
    """Why the plug-in would leave workers of this version alone; nothing if it would not. Tried on a real buffer."""
    with TemporaryDirectory() as folder:
        reason = spill.why_not(SpillBuffer(folder, target=1))
    return f"with distributed {distributed_version} workers stay on stock behaviour: {reason}" if reason else ""
