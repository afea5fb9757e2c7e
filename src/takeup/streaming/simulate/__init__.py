"""Simulators: the same cell and player as the solvers see, played out by chance, with standard errors.

`tagged` follows one video at a time on its chain, `cell` every video of a cell, `slots` every slot with its fading;
`simulate_log` lets a throughput log drive the cell, `simulate_adaptive` lets all its players adapt their bit rate. Each
checks what the one before takes for granted.
"""

from dataclasses import dataclass

from takeup.errors import UnknownName
from takeup.streaming.model import Cell, Player, QoeMetrics
from takeup.streaming.simulate.cell import (
    play_adaptive,
    play_cell,
    play_log,
    simulate_adaptive,
    simulate_cell,
    simulate_log,
)
from takeup.streaming.simulate.slots import Slots, play_slots, simulate_slots
from takeup.streaming.simulate.tagged import play_tagged, simulate_any_view, simulate_tagged

__all__ = [
    "NUM_VIDEOS",
    "SIMULATORS",
    "SimulatorEngine",
    "Slots",
    "play_adaptive",
    "play_cell",
    "play_log",
    "play_slots",
    "play_tagged",
    "simulate",
    "simulate_adaptive",
    "simulate_cell",
    "simulate_log",
    "simulate_slots",
    "simulate_tagged",
]

SIMULATORS = {"tagged": simulate_any_view, "cell": simulate_cell, "slots": simulate_slots}
NUM_VIDEOS = {"tagged": 400_000, "cell": 400_000, "slots": 20_000}  # what takes a few seconds at most


def simulate(
    cell: Cell, player: Player, *, simulator: str = "tagged", num_videos: int | None = None, seed: int = 0
) -> QoeMetrics:
    """What viewers experience in `cell`, by one of SIMULATORS; the same seed gives the same numbers."""
    if simulator not in SIMULATORS:
        raise UnknownName("simulator", simulator, SIMULATORS)
    num_videos = NUM_VIDEOS[simulator] if num_videos is None else num_videos
    return SIMULATORS[simulator](cell, player, num_videos=num_videos, seed=seed)


@dataclass(frozen=True, slots=True)
class SimulatorEngine:
    """A simulator as an engine: it measures any cell and player with the same seed."""

    simulator: str = "tagged"
    num_videos: int | None = None
    seed: int = 0

    def measure(self, cell: Cell, player: Player) -> QoeMetrics:
        """The simulated answer, with standard errors."""
        return simulate(cell, player, simulator=self.simulator, num_videos=self.num_videos, seed=self.seed)
