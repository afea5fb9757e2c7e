"""Replay of a throughput log: what one viewer would have experienced with a given player, from every moment of the log.

How it works. A session starts at many moments of the log, which goes round at its end. The player downloads whole
segments one after the other, pauses the download while its buffer is above the goal, starts to play at one threshold
and resumes at another. Lengths of videos are not drawn: a video of exponential length goes on after x seconds of
content with probability exp(-x / mean), so everything that happens is counted with that weight.
"""

import math
from dataclasses import dataclass

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.compiled import kernel
from takeup.core.seeds import Streams
from takeup.errors import BadInput
from takeup.streaming.model import Player

LEAST_WEIGHT = 1e-3  # of a video that goes on; what happens to rarer ones is left out
MOST_STARTS = 600
NUM_RESAMPLES, NUM_BLOCKS, COVERAGE = 400, 6, 0.9
NUM_PARTS, STUDENT_95 = 4, 2.353  # of the log, and the 95 % quantile of Student's t for that many less one
SMALLEST_PART = 0.05  # of the mean rate; an outage of a whole part is no reason to scale a log to nothing
QUANTITIES = ("stall_probability", "num_stalls", "stall_s", "startup_s")


@kernel
def _replay(
    durations_s: Floats, fills: Floats, begins: Floats, player: tuple[float, ...], mean_s: float, longest_s: float
) -> Floats:
    """P(stall), stalls, seconds in stalls and start-up of a session from every sample of `begins`, one row each."""
    start_s, resume_s, goal_s, segment_s = player
    outcomes = np.zeros((len(begins), 4))
    half = math.exp(-segment_s / 2 / mean_s)
    for row in range(len(begins)):
        sample = int(begins[row])
        left_s = durations_s[sample]
        content_s, buffer_s, enough_s, playing, num_stalls = 0.0, 0.0, start_s, False, 0
        while content_s < longest_s:
            weight = math.exp(-content_s / mean_s)
            passed_s = 0.0
            if playing and buffer_s > goal_s:
                passed_s = buffer_s - goal_s
                buffer_s = goal_s
            idle_s = passed_s
            while idle_s > left_s:
                idle_s -= left_s
                sample = sample + 1 if sample + 1 < len(fills) else 0
                left_s = durations_s[sample]
            left_s -= idle_s
            needed_s, took_s = segment_s, 0.0
            while needed_s > fills[sample] * left_s:
                needed_s -= fills[sample] * left_s
                took_s += left_s
                sample = sample + 1 if sample + 1 < len(fills) else 0
                left_s = durations_s[sample]
            part_s = needed_s / fills[sample] if needed_s > 0 else 0.0
            took_s += part_s
            left_s -= part_s
            content_s += segment_s
            if not playing:
                outcomes[row, 2 if num_stalls else 3] += weight * half * took_s
                buffer_s += segment_s
            elif took_s <= buffer_s:
                buffer_s += segment_s - took_s
            else:
                if num_stalls == 0:
                    outcomes[row, 0] = weight
                num_stalls += 1
                outcomes[row, 1] += weight
                outcomes[row, 2] += weight * half * (took_s - buffer_s)
                buffer_s, enough_s, playing = segment_s, resume_s, False
            playing = playing or buffer_s >= enough_s - 1e-9
    return outcomes


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over the log, and where that of the next log of this link lies with 90 %."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class SteadyLog:
    """A throughput log as it is replayed: samples with lengths, and rates in bit/s."""

    durations_s: Floats
    rates_bps: Floats

    @property
    def mean_bps(self) -> float:
        return float(self.durations_s @ self.rates_bps / self.durations_s.sum())

    def outcomes(
        self, player: Player, bitrate_bps: float, mean_s: float, scale: float = 1.0, length_s: float = math.inf
    ) -> Floats:
        """P(stall), stalls, seconds in stalls, start-up: one row per session, in the order of their starts.

        No video is longer than `length_s`; with an infinite mean all of them have this length.
        """
        if player.segment_s <= 0:
            raise BadInput("a replay downloads whole segments; give segment_s above zero")
        begins_s = np.linspace(0.0, self.durations_s.sum(), min(MOST_STARTS, len(self.rates_bps)), endpoint=False)
        begins = np.searchsorted(np.cumsum(self.durations_s), begins_s, side="right").astype(np.float64)
        goal_s = max(player.goal_s, player.segment_s)
        rules = (min(player.start_s, goal_s), min(player.again_s, goal_s), goal_s, player.segment_s)
        longest_s = min(length_s, -mean_s * math.log(LEAST_WEIGHT))
        fills = self.rates_bps * scale / bitrate_bps
        return np.asarray(_replay(self.durations_s, fills, begins, rules, mean_s, longest_s))

    def level_spread(self) -> float:
        """The standard deviation of the logarithm of the mean rate between four parts of the log."""
        bits, times_s = self.durations_s * self.rates_bps, np.cumsum(self.durations_s)
        part = np.minimum((NUM_PARTS * times_s / times_s[-1]).astype(np.int64), NUM_PARTS - 1)
        means = np.bincount(part, bits, NUM_PARTS) / np.maximum(np.bincount(part, self.durations_s, NUM_PARTS), 1e-9)
        return float(np.log(np.maximum(means / self.mean_bps, SMALLEST_PART)).std(ddof=1))


# Intervals for the next log of the same link --------------------------------------------------------------------------
#
# How it works. Two things are not known about the next log. Which of its moments are bad: sessions are resampled in
# blocks, and the difference of two such resamples is added to the mean. And its level: throughput is correlated over
# all time scales, so the next log differs from this one about as much as the parts of this one from each other. The log
# is replayed at a level that is lower, and at one that is higher, by Student's t times sqrt(2) times the spread of the
# parts. The interval holds both. It ends no lower than a share that n sessions would miss with 10 %, n being how many
# fit into the log one after the other: what was not seen may still happen.


def replay_intervals(log: SteadyLog, player: Player, bitrate_bps: float, mean_s: float) -> dict[str, Interval]:
    """Every quantity of QUANTITIES for sessions from all moments of the log, with intervals of 90 %."""
    shift = STUDENT_95 * math.sqrt(2) * log.level_spread()
    scales = (1.0, math.exp(-shift), math.exp(shift))
    found, lower, higher = (log.outcomes(player, bitrate_bps, mean_s, scale) for scale in scales)
    resampled = np.quantile(_differences(found), [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2], axis=0)
    mean = found.mean(axis=0)
    low = np.minimum(mean + resampled[0], np.minimum(lower.mean(axis=0), higher.mean(axis=0))).clip(0)
    high = np.maximum(mean + resampled[1], np.maximum(lower.mean(axis=0), higher.mean(axis=0)))
    unseen = 1 - (1 - COVERAGE) ** (mean_s / max(mean_s, float(log.durations_s.sum())))  # in as many sessions as fit
    high[:2] = np.maximum(high[:2], unseen)
    high[0] = min(high[0], 1.0)
    return {name: Interval(*map(float, row)) for name, *row in zip(QUANTITIES, mean, low, high, strict=True)}


def _differences(outcomes: Floats) -> Floats:
    """Differences between the means of two independent resamples of blocks of sessions."""
    num = len(outcomes)
    length = max(1, num // NUM_BLOCKS)
    running = np.concatenate([np.zeros((1, outcomes.shape[1])), np.cumsum(np.vstack([outcomes, outcomes]), axis=0)])
    begins = Streams(0).stream("replay blocks").integers(0, num, (2, NUM_RESAMPLES, math.ceil(num / length)))
    means = (running[begins + length] - running[begins]).mean(axis=2) / length
    return np.asarray(means[0] - means[1])


def held_out_errors(outcomes: Floats) -> list[tuple[float, float]]:
    """For each of four parts of the log, P(stall) from the other three and P(stall) in this one."""
    parts = np.array_split(outcomes[:, 0], NUM_PARTS)
    return [
        (float(np.concatenate([*parts[:place], *parts[place + 1 :]]).mean()), float(part.mean()))
        for place, part in enumerate(parts)
    ]
