"""The interface of streaming: a solver answers from a chain. Read this first.

The policy of this domain is a solver: pure mathematics, state in, distribution out. Simulators measure the same
cell and fill the same `QoeMetrics`, with standard errors, so that the two can be compared.
"""

from typing import Protocol

from takeup.streaming.model import Chain, Player, QoeMetrics


class Solver(Protocol):
    """Computes what viewers experience."""

    def solve(self, chain: Chain, player: Player) -> QoeMetrics:
        """The exact answer for videos that see this chain."""
