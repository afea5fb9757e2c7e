"""Playback of one video from the arrival times of its content: start-up delay, stalls and their length."""

from dataclasses import dataclass

from takeup.core.arrays import Floats
from takeup.streaming.model import Player

TOLERANCE_S = 1e-9  # sums of pieces may miss a threshold by rounding


@dataclass(frozen=True, slots=True)
class Playback:
    """Playback of one video as the viewer experiences it. Stalls do not include the start-up."""

    startup_s: float
    num_stalls: int
    stall_s: float
    finished_early: bool


def play(content_s: Floats, took_s: Floats, player: Player) -> Playback:
    """Play pieces of content that follow each other, each with its download time, by the rules of `player`.

    While the buffer is above the goal nothing is downloaded, which is in no download time. The last piece ends the
    download; what plays after it cannot stall.
    """
    goal_s = max(player.full_s, float(content_s.max()))
    buffer_s, enough_s, playing, waits_s = 0.0, min(player.start_s, goal_s), False, [0.0]
    for content, took in zip(content_s.tolist(), took_s.tolist(), strict=True):
        if playing:
            buffer_s = min(buffer_s, goal_s)
            left_s = min(buffer_s, player.pause_s)
            buffer_s -= took
            if buffer_s < left_s - TOLERANCE_S:
                waits_s.append(left_s - buffer_s)
                buffer_s, enough_s, playing = left_s, min(player.again_s, goal_s), False
        else:
            waits_s[-1] += took
        buffer_s += content
        playing = playing or buffer_s >= enough_s - TOLERANCE_S
    startup_s, *stalls_s = waits_s
    return Playback(startup_s, len(stalls_s), sum(stalls_s), not (playing or stalls_s))
