"""Whether the plug-in supports the installed Dask; used by `takeup doctor`."""

from __future__ import annotations

from tempfile import TemporaryDirectory

from distributed.spill import SpillBuffer

from takeup.caching.engines.dask import spill


def why_unsupported(distributed_version: str) -> str:
    """Why the plug-in does not support this version, empty if it does; tested on a real buffer."""
    with TemporaryDirectory() as folder:
        reason = spill.why_not(SpillBuffer(folder, target=1))
    return f"with distributed {distributed_version} workers stay on stock behaviour: {reason}" if reason else ""
