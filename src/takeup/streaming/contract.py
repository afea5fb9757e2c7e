"""The interfaces of streaming: a solver answers from a chain, an engine measures playback. Read this first.

The policy of this domain is a solver: pure mathematics, state in, distribution out. Simulators and real HTTP players
measure the same cell and fill the same `QoeMetrics`, with standard errors, so that the two can be compared.
"""

from typing import Protocol

from numpy.random import Generator

from takeup.streaming.model import Cell, Chain, Player, QoeMetrics


class Solver(Protocol):
    """Computes what viewers experience."""

    def solve(self, chain: Chain, player: Player) -> QoeMetrics:
        """The exact answer for videos that see this chain."""


class StreamingEngine(Protocol):
    """Lets videos happen and measures what viewers experience."""

    def plan(self, cell: Cell, num_videos: int) -> object:
        """What a run would do, as text by `str`; nothing is opened."""

    def measure(self, cell: Cell, player: Player, num_videos: int, rng: Generator) -> QoeMetrics:
        """The measured answer, with standard errors."""
