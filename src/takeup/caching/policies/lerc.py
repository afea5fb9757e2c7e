"""Least Effective Reference Count: drop the block that the fewest consumers can still use at memory speed.

Yu, Wang, Zhang, Letaief, "LERC: Coordinated Cache Management for Data-Parallel Systems", GLOBECOM 2017. A consumer is
fast only if *all* its inputs are in memory, so a reference counts only while none of its peers is lost. Among equals
the smaller plain count goes first: it is the less likely to become useful again.
"""

from takeup.caching.model import BlockId
from takeup.caching.policies.base import Rank
from takeup.caching.policies.lrc import LeastReferenceCount


class LeastEffectiveReferenceCount(LeastReferenceCount):
    """Rank: the effective reference count, then the reference count."""

    def rank(self, block: BlockId) -> Rank:
        return (self.table.erc(block), *super().rank(block))

    def explain(self, block: BlockId) -> str:
        return f"completes {self.table.erc(block)} groups, of {self.table.rc(block)} that read it"
