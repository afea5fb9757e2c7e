"""How much of a pool may be promised to spot jobs: what a forecast leaves free, corrected by how promises were kept.

Open `allocator.py` first.
"""

from __future__ import annotations

from takeup.cluster.policies.gfs.quota.allocator import SpotQuota
from takeup.cluster.policies.gfs.quota.feedback import Feedback, Goal, corrected
from takeup.cluster.policies.gfs.quota.menu import Menu, SpotPromise, promises_of

__all__ = ["Feedback", "Goal", "Menu", "SpotPromise", "SpotQuota", "corrected", "promises_of"]
