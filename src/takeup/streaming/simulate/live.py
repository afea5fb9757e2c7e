"""Live streaming over a throughput log: the latency of a viewer against its stalls, with a player that catches up.

How it works. The stream comes in chunks (parts of LL-HLS, chunks of LL-DASH), each available when its last frame is
made. A player joins behind the live edge by the target latency, downloads chunk after chunk, none before it is there,
starts with half of the target in its buffer (it resumes with the next chunk), and plays faster while it is further
behind than its target and has half a second in its buffer. A stall leaves it behind by as much as it lasted; beyond the
largest drift it skips to its target. As in the replay of videos, a session goes on after t seconds with probability
exp(-t / mean), and what happens then has that weight.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.compiled import inlined, inner, kernel
from takeup.errors import BadInput
from takeup.streaming.simulate.replay import (
    LEAST_WEIGHT,
    Interval,
    LogPlace,
    SteadyLog,
    fetch_bits,
    intervals,
    pass_seconds,
)

MAX_DRIFT_S = 12.0  # behind the target, as in dash.js
LEAST_BUFFER_S = 0.5  # to play faster


@dataclass(frozen=True, slots=True)
class LivePlayer:
    """The target latency, the chunks of the stream, and how much faster than 1 the player may play."""

    latency_s: float
    chunk_s: float
    catch_up: float

    def __post_init__(self) -> None:
        if not (0 < self.chunk_s <= self.latency_s < math.inf and 0 <= self.catch_up < 1):
            found = f"a target of {self.latency_s} s with chunks of {self.chunk_s} s and a catch-up of {self.catch_up}"
            raise BadInput(f"{found}; give 0 < chunk <= target, and a catch-up from 0 to 1")


class Stream(NamedTuple):
    """What stays the same in all sessions."""

    latency_s: float
    chunk_s: float
    catch_up: float
    bitrate_bps: float
    mean_s: float


@inlined
def _played(seconds: float, state: Floats, stream: Stream) -> float:
    """Play for some seconds of time; returns those left when the buffer ran empty. `state`: buffer, latency."""
    while seconds > 1e-12:
        behind_s, spare_s = state[1] - stream.latency_s, state[0] - LEAST_BUFFER_S
        faster = stream.catch_up if behind_s > 1e-9 and spare_s > 1e-9 else 0.0
        step_s = min(seconds, (spare_s if faster > 0 else state[0]) / (1 + faster))
        if faster > 0:
            step_s = min(step_s, behind_s / faster)
        state[0] -= step_s * (1 + faster)
        state[1] -= step_s * faster
        seconds -= step_s
        if state[0] <= 1e-12:
            return seconds
    return 0.0


@inner
def _live_session(link: LogPlace, stream: Stream, state: Floats, outcome: Floats) -> None:
    """One viewer; time counts from the request, the first chunk is the one that the target latency asks for."""
    num_behind = math.ceil(stream.latency_s / stream.chunk_s - 1e-9)
    state[0], state[1] = 0.0, num_behind * stream.chunk_s
    now_s, chunk, playing, num_stalls, total_s, enough_s = 0.0, 0, False, 0, 0.0, stream.latency_s / 2
    while now_s < -stream.mean_s * math.log(LEAST_WEIGHT):
        wait_s = max(0.0, (chunk + 1 - num_behind) * stream.chunk_s - now_s)
        pass_seconds(link, wait_s)
        step_s = wait_s + fetch_bits(link, stream.chunk_s * stream.bitrate_bps, np.inf)
        dry_s = _played(step_s, state, stream) if playing else step_s
        now_s, chunk = now_s + step_s, chunk + 1
        weight, before = math.exp(-now_s / stream.mean_s), math.exp((dry_s - now_s) / stream.mean_s)
        if dry_s > 0 and playing:
            outcome[0] = before if num_stalls == 0 else outcome[0]
            num_stalls += 1
            outcome[1] += before
            enough_s = stream.chunk_s
        outcome[2 if num_stalls else 3] += stream.mean_s * (before - weight)
        state[1] += dry_s
        playing = playing and dry_s == 0
        state[0] += stream.chunk_s
        if state[0] >= enough_s - 1e-9:
            playing, enough_s = True, stream.chunk_s
        if state[1] > stream.latency_s + MAX_DRIFT_S:
            skipped = math.floor((state[1] - stream.latency_s) / stream.chunk_s)
            chunk += max(0, skipped - math.floor(state[0] / stream.chunk_s))
            state[0] = max(0.0, state[0] - skipped * stream.chunk_s)
            state[1] -= skipped * stream.chunk_s
            outcome[5] += weight * skipped * stream.chunk_s
            playing = state[0] > 0
        outcome[4] += weight * step_s * state[1]
        total_s += weight * step_s
    outcome[4] /= total_s


@kernel
def _live(durations_s: Floats, rates_bps: Floats, begins: Floats, stream: Stream) -> Floats:
    outcomes = np.zeros((len(begins), 6))
    at, state = np.zeros(2), np.zeros(2)
    for row in range(len(begins)):
        at[0], at[1] = begins[row], durations_s[int(begins[row])]
        _live_session(LogPlace(durations_s, rates_bps, at), stream, state, outcomes[row])
    return outcomes


def live_outcomes(log: SteadyLog, player: LivePlayer, bitrate_bps: float, mean_s: float, scale: float = 1.0) -> Floats:
    """P(stall), stalls, seconds in stalls, start-up, mean latency, seconds skipped; one row per session."""
    stream = Stream(player.latency_s, player.chunk_s, player.catch_up, bitrate_bps, mean_s)
    return np.asarray(_live(log.durations_s, log.rates_bps * scale, log.begins(), stream))


LIVE_QUANTITIES = ("stall_probability", "num_stalls", "stall_s", "startup_s", "latency_s", "skipped_s")


def live_intervals(log: SteadyLog, player: LivePlayer, bitrate_bps: float, mean_s: float) -> dict[str, Interval]:
    """Every quantity of LIVE_QUANTITIES with intervals of 90 % for the next log of this link."""
    found = intervals(log, lambda scale: live_outcomes(log, player, bitrate_bps, mean_s, scale), mean_s)
    return dict(zip(LIVE_QUANTITIES, found.values(), strict=True))
