"""What the plug-in did, on one worker or on all of them together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(slots=True)
class DaskCounts:
    """Counts since the plug-in was installed on the current workers."""

    num_workers: int = 0
    """Workers whose spill order follows the policy; the others are on stock behaviour."""
    num_hits: int = 0
    """Reads that found the value in memory."""
    num_misses: int = 0
    """Reads that had to bring the value back."""
    num_evictions: int = 0
    num_evictions_with_readers: int = 0
    """Evictions of values that an announced task will still read."""
    num_clean_evictions: int = 0
    """Evictions that wrote nothing, because the copy on disk was still there."""
    num_prefetches: int = 0
    written_bytes: int = 0
    saved_bytes: int = 0
    """Bytes that clean evictions did not write."""
    read_bytes: int = 0
    prefetched_bytes: int = 0
    copies_bytes: int = 0
    """Bytes on disk now that are copies of values in memory."""
    num_open_consumers: int = 0
    """Announced tasks that are not computed yet, summed over the workers that know them."""
    num_pinned: int = 0
    """Values that running tasks hold now."""

    @classmethod
    def total(cls, parts: Iterable[DaskCounts]) -> DaskCounts:
        """The sum of all parts."""
        found = list(parts)
        return cls(**{field.name: sum(getattr(part, field.name) for part in found) for field in fields(cls)})
