"""The interfaces of streaming: a solver answers from a chain, an engine measures playback. Read this first.

The policy of this domain is a solver: pure mathematics, state in, distribution out. Simulators and the real HTTP
players are its engines: they play the same cell and fill the same `QoeMetrics`, with standard errors, so that both
can be compared.
"""

from typing import Protocol

from takeup.streaming.model import Cell, Chain, Player, QoeMetrics


class Solver(Protocol):
    """Computes what viewers experience."""

    def solve(self, chain: Chain, player: Player) -> QoeMetrics:
        """The exact answer for videos that see this chain."""


class StreamingEngine(Protocol):
    """Lets videos happen and measures what viewers experience."""

    def measure(self, cell: Cell, player: Player) -> QoeMetrics:
        """The measured answer, with standard errors."""
