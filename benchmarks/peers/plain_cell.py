"""What a user would write instead: one video after the other through a cell, event by event, in plain Python.

The number of other users goes up and down by chance, the buffer follows, and what is counted is how many videos stall.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlainRun:
    """How many of the videos stalled at least once."""

    num_videos: int
    num_stalled: int

    @property
    def stall_probability(self) -> float:
        return self.num_stalled / self.num_videos

    @property
    def error(self) -> float:
        share = self.stall_probability
        return math.sqrt(share * (1 - share) / self.num_videos)


def run_plain(
    speed: float, mean_s: float, arrivals_per_s: float, max_users: int, start_s: float, num_videos: int, seed: int
) -> PlainRun:
    """Play videos that start, and start again after a stall, at `start_s` seconds of buffer."""
    chance = random.Random(seed)
    load = arrivals_per_s * mean_s / speed
    found = [load**others for others in range(max_users)]
    num_stalled = 0
    for _ in range(num_videos):
        others = chance.choices(range(max_users), found)[0]
        num_stalled += _stalls(chance, others, speed, mean_s, arrivals_per_s, max_users, start_s)
    return PlainRun(num_videos, num_stalled)


def _stalls(
    chance: random.Random,
    others: int,
    speed: float,
    mean_s: float,
    arrivals_per_s: float,
    max_users: int,
    start_s: float,
) -> bool:
    left_s, buffer_s, playing = chance.expovariate(1 / mean_s), 0.0, False
    while True:
        fill = speed / (others + 1)
        comes = arrivals_per_s if others < max_users - 1 else 0.0
        goes = others * fill / mean_s
        step_s = min(chance.expovariate(comes + goes) if comes + goes else math.inf, left_s / fill)
        if playing and buffer_s + (fill - 1) * step_s < 0:
            return True
        waits_s = 0.0 if playing else max(0.0, (start_s - buffer_s) / fill)
        plays_s = max(0.0, step_s - waits_s)
        playing = playing or waits_s <= step_s
        buffer_s += fill * step_s - plays_s
        if playing and buffer_s < 0:  # started and ran empty within one step
            return True
        left_s -= fill * step_s
        if left_s <= 1e-12:
            return False
        others += 1 if chance.random() * (comes + goes) < comes else -1
