"""Playback model: start-up delay, stalls and their length, from the arrival times of the content."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from takeup.streaming.model import Player

TOLERANCE_S = 1e-9  # sums of segments may miss a threshold by rounding


@dataclass(frozen=True, slots=True)
class Playback:
    """Playback of one video as the viewer experiences it. Stalls do not include the start-up."""

    startup_s: float
    num_stalls: int
    stall_s: float
    finished_early: bool


def play(arrivals: Iterable[tuple[float, float]], player: Player) -> Playback:
    """Play a video from arrivals `(time_s, content_s)`: time since the request, and content received *in total*.

    The last arrival is the end of the download. What plays after it cannot stall.
    """
    screen = _PlaybackState(player)
    for time_s, content_s in arrivals:
        screen.arrive(time_s, content_s)
    return screen.end()


class _PlaybackState:
    """Either plays until the buffer is empty, or waits since some time for the buffer to reach a threshold."""

    def __init__(self, player: Player) -> None:
        self.player = player
        self.threshold_s = player.start_s
        self.waiting_since_s: float | None = 0.0
        self.empty_at_s = self.played_s = self.content_s = self.now_s = 0.0
        self.waits_s: list[float] = []
        self.num_stalls = 0

    def arrive(self, time_s: float, content_s: float) -> None:
        if self.waiting_since_s is None and time_s > self.empty_at_s + TOLERANCE_S:
            self._stall()
        if self.waiting_since_s is None:
            self.empty_at_s += content_s - self.content_s
        elif content_s - self.played_s >= self.threshold_s - TOLERANCE_S:
            self._resume(time_s, content_s)
        self.now_s, self.content_s = time_s, content_s

    def _stall(self) -> None:
        """Record that the buffer ran empty before this arrival: all received content was played by then."""
        self.waiting_since_s, self.played_s = self.empty_at_s, self.content_s
        self.threshold_s = self.player.again_s
        self.num_stalls += 1

    def _resume(self, time_s: float, content_s: float) -> None:
        assert self.waiting_since_s is not None
        self.waits_s.append(time_s - self.waiting_since_s)
        self.waiting_since_s, self.empty_at_s = None, time_s + content_s - self.played_s

    def end(self) -> Playback:
        if self.waiting_since_s is not None:  # a whole video plays, however short
            self.waits_s.append(self.now_s - self.waiting_since_s)
        startup_s, *stalls_s = self.waits_s
        finished_early = self.num_stalls == 0 and self.waiting_since_s is not None
        return Playback(startup_s, self.num_stalls, sum(stalls_s), finished_early)
