"""How much of a pool may be promised to spot jobs: what a forecast leaves free, corrected by how promises were kept.

Open `allocator.py` first.
"""

from takeup.cluster.quota.allocator import Feedback, Goal, SpotQuota, corrected
from takeup.cluster.quota.menu import Menu, SpotPromise, promises_of

__all__ = ["Feedback", "Goal", "Menu", "SpotPromise", "SpotQuota", "corrected", "promises_of"]
