"""Simulators: the same cell and player as the solvers see, played at random, with standard errors.

tagged   one video at a time on its chain; checks the solution of the chain
cell     every video of a cell, each with a separate player; checks that a video does see that chain
slots    every slot with its fading; checks what the equations reduce to a variance
"""

from takeup.core.compiled import drop_stale_code
from takeup.core.lazy import find
from takeup.errors import BadInput
from takeup.streaming.model import Cell, Player, QoeMetrics

drop_stale_code(__file__)

SIMULATORS = {
    "tagged": "takeup.streaming.simulate.tagged:simulate_any_view",
    "cell": "takeup.streaming.simulate.cell:simulate_cell",
    "slots": "takeup.streaming.simulate.slots:simulate_slots",
}
NUM_VIDEOS = {"tagged": 400_000, "cell": 400_000, "slots": 20_000}  # what takes a few seconds at most


def simulate(
    cell: Cell,
    player: Player,
    *,
    simulator: str = "tagged",
    num_videos: int | None = None,
    seed: int = 0,
    give_up_per_s: float = 0.0,
) -> QoeMetrics:
    """What viewers experience in `cell`, by one of SIMULATORS; the same seed gives the same numbers."""
    play = find("simulator", simulator, SIMULATORS)
    if simulator != "cell" and give_up_per_s > 0:
        raise BadInput(f"{simulator!r} plays viewers that never give up; simulate 'cell'")
    impatience = {"give_up_per_s": give_up_per_s} if give_up_per_s > 0 else {}
    num = NUM_VIDEOS[simulator] if num_videos is None else num_videos
    answer = play(cell, player, num_videos=num, seed=seed, **impatience)
    assert isinstance(answer, QoeMetrics)
    return answer
