"""How much of a pool may be promised to spot jobs: what a forecast leaves free, corrected by how promises were kept.

Open `allocator.py` first.
"""

from takeup.cluster.quota.allocator import Goal as Goal
from takeup.cluster.quota.allocator import SpotQuota as SpotQuota
