"""MIN: Belady's bound. Drop the block that will really be read last, and refuse one that is read later than the rest.

Belady, "A study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 1966. It sees every job
of the future, so it is a bound and not a policy one could deploy. For equal sizes no policy has more hits as long as a
task holds one block at a time; where inputs that are pinned keep a block out that is needed sooner, one may have a few.
"""

from takeup.caching.policies.furthest_next_use import FurthestNextUse


class Belady(FurthestNextUse):
    """Next use, on a table that holds the whole future."""
