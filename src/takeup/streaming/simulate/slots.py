"""The whole cell slot by slot, with fading and with videos whose bitrate varies: what equations reduce to a variance.

In every slot each user draws a Rayleigh channel; an opportunistic cell serves the one whose channel is best at the
moment, any other cell shares the slot equally and has no fading. A video consists of groups of pictures, each of which
plays equally long but is more or less data: content is measured in seconds at the mean bitrate, so that a large group
drains the buffer faster. A stall interrupts a group, and playback goes on where it was.
"""

from dataclasses import dataclass

import numpy as np

from takeup.core.seeds import Streams
from takeup.errors import BadInput
from takeup.streaming.model import Cell, Player, QoeMetrics
from takeup.streaming.simulate.cell import WARM_UP_SHARE, CellRun
from takeup.streaming.simulate.compiled.slots import SlotParameters, empty_slot_users, play_every_slot
from takeup.streaming.simulate.video_records import check_run, empty_records, mean_patience_s, metrics_from_batches


@dataclass(frozen=True, slots=True)
class Slots:
    """The grain of the simulation: the slot, and the groups of pictures with their coefficient of variation."""

    slot_s: float = 0.002
    gop_s: float = 1.0
    gop_variation: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.slot_s <= self.gop_s < np.inf and 0 <= self.gop_variation < np.inf):
            raise BadInput(
                f"slots of {self.slot_s} s, groups of {self.gop_s} s, a variation of {self.gop_variation} do not fit; "
                "give 0 < slot_s <= gop_s and a variation of zero or more, all finite"
            )


def simulate_slots(
    cell: Cell,
    player: Player,
    slots: Slots | None = None,
    *,
    num_videos: int = 20_000,
    seed: int = 0,
    give_up_per_s: float = 0.0,
) -> QoeMetrics:
    """What viewers experience in `cell`, slot by slot; errors from batch means.

    While they wait, all of them give up at the rate `give_up_per_s`.
    """
    played = play_slots(cell, player, slots, num_videos=num_videos, seed=seed, give_up_per_s=give_up_per_s)
    return metrics_from_batches("slots", played.records)


def play_slots(
    cell: Cell,
    player: Player,
    slots: Slots | None = None,
    *,
    num_videos: int = 20_000,
    seed: int = 0,
    give_up_per_s: float = 0.0,
) -> CellRun:
    """The same, video by video; an event is a slot with at least one user."""
    check_run(player, num_videos)
    if cell.capacity is not None:
        raise BadInput("slots are for a constant capacity; simulate the whole cell to let the capacity change")
    num_warm_up = int(num_videos * WARM_UP_SHARE)
    lived = empty_records(num_warm_up + num_videos)
    streams = Streams(seed).child("slots")
    chances = tuple(streams.stream(name) for name in ("arrivals", "lengths", "fading", "pictures", "patience"))
    grain = _slot_parameters(cell, player, slots or Slots(), mean_patience_s(give_up_per_s))
    num_slots = play_every_slot(grain, empty_slot_users(cell.max_users), lived, chances)
    return CellRun(lived.after(num_warm_up), num_slots)


def _slot_parameters(cell: Cell, player: Player, slots: Slots, patience_s: float) -> SlotParameters:
    return SlotParameters(
        gap_s=1 / cell.arrivals_per_s,
        class_upto=np.cumsum([views.share for views in cell.views]),
        mean_s=np.array([views.mean_s for views in cell.views]),
        start_s=player.start_s,
        resume_s=player.again_s,
        opportunistic=cell.opportunistic,
        slot_s=slots.slot_s,
        slot_content_s=cell.speed * slots.slot_s,
        gop=round(slots.gop_s / slots.slot_s),
        gop_variation=slots.gop_variation,
        patience_s=patience_s,
    )
