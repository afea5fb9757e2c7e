"""Replay of a throughput log: what one viewer would have experienced with a given player, from every moment of the log.

How it works. A session starts at many moments of the log, which goes round at its end. The player downloads whole
segments one after the other, pauses the download while its buffer is above the goal, starts to play at one threshold
and resumes at another. Where the video has several bitrates, a rule of RULES chooses one for every segment. Lengths of
videos are not drawn: a video of exponential length goes on after x seconds of content with probability exp(-x / mean),
so everything that happens is counted with that weight.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.compiled import inlined, inner, kernel
from takeup.core.seeds import Streams
from takeup.errors import BadInput
from takeup.streaming.model import RULES, Player

LEAST_WEIGHT = 1e-3  # of a video that goes on; what happens to rarer ones is left out
MOST_STARTS = 600
NUM_RESAMPLES, NUM_BLOCKS, COVERAGE = 400, 6, 0.9
NUM_LEVELS, NUM_SPREADS = 12, 1.5  # parts whose levels are compared, and how far apart two logs are, in their spread
USUAL_SPREAD, LEAST_SHARE, MOST_SHARE = 0.25, 0.5, 3.0  # calm links move by less
SMALLEST_PART = 0.05  # of the mean rate; an outage of a whole part is no reason to scale a log to nothing
NUM_PARTS = 4  # predicted from each other
NUM_RETRIES, RETRY_S = 3, 1.0  # of a request, as in dash.js and Shaka
QUANTITIES = ("stall_probability", "num_stalls", "stall_s", "startup_s", "bitrate_bps", "num_switches")

# The bit rate of the next segment -------------------------------------------------------------------------------------
#
# throughput   the highest below 0.9 of the smaller of two moving averages with half-lives of 3 and 8 s of download time
# bola         BOLA (Spiteri, Urgaonkar, Sitaraman, INFOCOM 2016): the most of (V (utility + 5 s) - buffer) / bitrate,
#              and no higher than one above what the throughput allows
# bba          buffer-based (Huang et al., SIGCOMM 2014, BBA-0): from the lowest to the highest bitrate as the buffer
#              goes from 3/8 to 9/10 of its goal
#
# dynamic      throughput while the buffer is below 12 s, bola above, as in dash.js
#
# The first two are those of Sabre, with a constant bitrate and no abandoned segments; the benchmark compares them.

SAFETY, HALF_LIVES_S, GAMMA_S = 0.9, (8.0, 3.0), 5.0
RESERVOIR, CUSHION = 90 / 240, 216 / 240
HYBRID_S = 12.0


class Rules(NamedTuple):
    """A player and its video, for the kernel; `goals_s` is the buffer goal below the highest bitrate, and at it."""

    start_s: float
    resume_s: float
    pause_s: float
    timeout_s: float
    goals_s: tuple[float, float]
    segment_s: float
    rule: int
    rungs_bps: Floats
    mean_s: float
    longest_s: float


@inlined
def _highest_below(rungs_bps: Floats, rate_bps: float) -> int:
    rung = 0
    while rung + 1 < len(rungs_bps) and rungs_bps[rung + 1] <= rate_bps:
        rung += 1
    return rung


@inner
def _bola(rules: Rules, buffer_s: float, last: int, rate_bps: float) -> int:
    rungs = rules.rungs_bps
    scale = rules.goals_s[0] / (math.log(rungs[-1] / rungs[0]) + GAMMA_S)
    best, most = 0, -np.inf
    for rung in range(len(rungs)):
        score = (scale * (math.log(rungs[rung] / rungs[0]) + GAMMA_S) - buffer_s) / rungs[rung]
        if score > most:
            best, most = rung, score
    allowed = _highest_below(rungs, rate_bps)
    if best <= last or best <= allowed:
        return best
    return last if last > allowed else allowed + 1


@inner
def _rung(rules: Rules, buffer_s: float, last: int, rate_bps: float) -> int:
    """The bitrate of the next segment; `rate_bps` is what was measured so far, zero before the first segment."""
    if rate_bps == 0 or len(rules.rungs_bps) == 1:
        return 0
    if rules.rule == 0 or (rules.rule == 3 and buffer_s < HYBRID_S):
        return _highest_below(rules.rungs_bps, SAFETY * rate_bps)
    if rules.rule in (1, 3):
        return _bola(rules, buffer_s, last, rate_bps)
    goal_s = rules.goals_s[0]
    share = min(max((buffer_s - RESERVOIR * goal_s) / ((CUSHION - RESERVOIR) * goal_s), 0.0), 1.0)
    low, high = rules.rungs_bps[0], rules.rungs_bps[-1]
    return _highest_below(rules.rungs_bps, low + share * (high - low) + 1e-6)


# One session ----------------------------------------------------------------------------------------------------------


class LogPlace(NamedTuple):
    """A log, and where a session is in it: `at` holds the sample and the seconds that are left of it."""

    durations_s: Floats
    rates_bps: Floats
    at: Floats


@inlined
def _next_sample(link: LogPlace) -> None:
    link.at[0] = link.at[0] + 1 if link.at[0] + 1 < len(link.rates_bps) else 0
    link.at[1] = link.durations_s[int(link.at[0])]


@inlined
def pass_seconds(link: LogPlace, seconds: float) -> None:
    """Let this many seconds of the log go by."""
    while seconds > link.at[1]:
        seconds -= link.at[1]
        _next_sample(link)
    link.at[1] -= seconds


@inlined
def fetch_bits(link: LogPlace, bits: float, limit_s: float) -> float:
    """Download this many bits, for `limit_s` at most; returns the seconds that it took."""
    took_s = 0.0
    while True:
        rate_bps, step_s = link.rates_bps[int(link.at[0])], min(link.at[1], limit_s - took_s)
        if bits <= rate_bps * step_s:
            rest_s = bits / rate_bps if bits > 0 else 0.0
            link.at[1] -= rest_s
            return float(took_s + rest_s)
        bits -= rate_bps * step_s
        took_s += step_s
        link.at[1] -= step_s
        if took_s >= limit_s:
            return float(took_s)
        _next_sample(link)


@inlined
def _fetch_segment(link: LogPlace, bits: float, timeout_s: float) -> float:
    """Download a segment; a request that takes too long is made again, a second later and from the first byte."""
    waited_s = 0.0
    for _ in range(NUM_RETRIES):
        took_s = fetch_bits(link, bits, timeout_s)
        waited_s += took_s
        if took_s < timeout_s:
            return waited_s
        pass_seconds(link, RETRY_S)
        waited_s += RETRY_S
    return waited_s + fetch_bits(link, bits, np.inf)


@inlined
def _measured_bps(averages: Floats, rate_bps: float, took_s: float) -> float:
    """The smaller of the moving averages; `averages` holds the time so far and both sums."""
    averages[2] += took_s
    least = np.inf
    for place in range(2):
        alpha = 0.5 ** (took_s / HALF_LIVES_S[place])
        averages[place] = alpha * averages[place] + (1 - alpha) * rate_bps
        least = min(least, averages[place] / (1 - 0.5 ** (averages[2] / HALF_LIVES_S[place])))
    return least


@inner
def _session(link: LogPlace, rules: Rules, outcome: Floats) -> None:
    """What happens in one session, each time with the weight of the videos that are that long."""
    segment_s, top = rules.segment_s, len(rules.rungs_bps) - 1
    half = math.exp(-segment_s / 2 / rules.mean_s)
    averages = np.zeros(3)
    content_s, buffer_s, enough_s, rate_bps, total = 0.0, 0.0, rules.start_s, 0.0, 0.0
    playing, num_stalls, rung = False, 0, 0
    while content_s < rules.longest_s:
        weight = math.exp(-content_s / rules.mean_s)
        goal_s = rules.goals_s[1 if rung == top else 0]
        if playing and buffer_s > goal_s:
            pass_seconds(link, buffer_s - goal_s)
            buffer_s = goal_s
        last, rung = rung, _rung(rules, buffer_s, rung, rate_bps)
        took_s = _fetch_segment(link, rules.rungs_bps[rung] * segment_s, rules.timeout_s)
        if top > 0:
            rate_bps = _measured_bps(averages, rules.rungs_bps[rung] * segment_s / took_s, took_s)
        outcome[4] += weight * rules.rungs_bps[rung]
        outcome[5] += weight if rung != last and content_s > 0 else 0.0
        total += weight
        content_s += segment_s
        if not playing:
            outcome[2 if num_stalls else 3] += weight * half * took_s
            buffer_s += segment_s
        elif took_s <= buffer_s - rules.pause_s:
            buffer_s += segment_s - took_s
        else:
            outcome[0] = weight if num_stalls == 0 else outcome[0]
            num_stalls += 1
            outcome[1] += weight
            left_s = min(buffer_s, rules.pause_s)
            outcome[2] += weight * half * (took_s - buffer_s + left_s)
            buffer_s, enough_s, playing = left_s + segment_s, rules.resume_s, False
        playing = playing or buffer_s >= enough_s - 1e-9
    outcome[4] /= total


@kernel
def _replay(durations_s: Floats, rates_bps: Floats, begins: Floats, rules: Rules) -> Floats:
    """All of QUANTITIES of a session from every sample of `begins`, one row each."""
    outcomes = np.zeros((len(begins), 6))
    at = np.zeros(2)
    for row in range(len(begins)):
        at[0], at[1] = begins[row], durations_s[int(begins[row])]
        _session(LogPlace(durations_s, rates_bps, at), rules, outcomes[row])
    return outcomes


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over the log, and where that of the next log of this link lies with 90 %."""

    value: float
    low: float
    high: float


Bitrates = float | Sequence[float]


@dataclass(frozen=True, slots=True)
class SteadyLog:
    """A throughput log as it is replayed: samples with lengths, and rates in bit/s."""

    durations_s: Floats
    rates_bps: Floats

    @property
    def mean_bps(self) -> float:
        return float(self.durations_s @ self.rates_bps / self.durations_s.sum())

    def outcomes(
        self, player: Player, bitrates_bps: Bitrates, mean_s: float, scale: float = 1.0, length_s: float = math.inf
    ) -> Floats:
        """All of QUANTITIES, one row per session, in the order of their starts.

        No video is longer than `length_s`; with an infinite mean all of them have this length.
        """
        begins = self.begins()
        rules = _rules(player, bitrates_bps, mean_s, min(length_s, -mean_s * math.log(LEAST_WEIGHT)))
        return np.asarray(_replay(self.durations_s, self.rates_bps * scale, begins, rules))

    def begins(self) -> Floats:
        """The samples at which sessions start."""
        begins_s = np.linspace(0.0, self.durations_s.sum(), min(MOST_STARTS, len(self.rates_bps)), endpoint=False)
        return np.searchsorted(np.cumsum(self.durations_s), begins_s, side="right").astype(np.float64)

    def level_spread(self) -> float:
        """The standard deviation of the logarithm of the mean rate between the parts of the log."""
        bits, times_s = self.durations_s * self.rates_bps, np.cumsum(self.durations_s)
        part = np.minimum((NUM_LEVELS * times_s / times_s[-1]).astype(np.int64), NUM_LEVELS - 1)
        lasts_s = np.bincount(part, self.durations_s, NUM_LEVELS)
        means = np.bincount(part, bits, NUM_LEVELS)[lasts_s > 0] / lasts_s[lasts_s > 0]
        return float(np.log(np.maximum(means / self.mean_bps, SMALLEST_PART)).std(ddof=1)) if len(means) > 1 else 0.0


def _rules(player: Player, bitrates_bps: Bitrates, mean_s: float, longest_s: float) -> Rules:
    if player.segment_s <= 0:
        raise BadInput("a replay downloads whole segments; give segment_s above zero")
    below_s, top_s = (max(goal_s, player.segment_s) for goal_s in (player.goal_s, player.full_s))
    rungs_bps = np.sort(np.atleast_1d(np.asarray(bitrates_bps, np.float64)))
    least_s = top_s if len(rungs_bps) == 1 else min(below_s, top_s)
    start_s, resume_s = min(player.start_s, least_s), min(player.again_s, least_s)
    rule, limits = RULES.index(player.rule), (player.pause_s, player.timeout_s)
    return Rules(start_s, resume_s, *limits, (below_s, top_s), player.segment_s, rule, rungs_bps, mean_s, longest_s)


# Intervals for the next log of the same link --------------------------------------------------------------------------
#
# How it works. Two things are not known about the next log. Which of its moments are bad: sessions are resampled in
# blocks, and the difference of two such resamples is added to the mean. And its level: throughput is correlated over
# all time scales, so the next log differs from this one about as much as the parts of this one from each other. The log
# is replayed at a level that is lower, and at one that is higher, by sqrt(2) times the spread of the parts and a factor
# that grows with it: the factor was set on the halves of 165 development logs of three kinds. The interval holds both.
# It ends no lower than a share that n sessions would miss with 10 %, n being how many fit into the log one after the
# other: what was not seen may still happen.


def replay_intervals(log: SteadyLog, player: Player, bitrates_bps: Bitrates, mean_s: float) -> dict[str, Interval]:
    """Every quantity of QUANTITIES for sessions from all moments of the log, with intervals of 90 %."""
    return intervals(log, lambda scale: log.outcomes(player, bitrates_bps, mean_s, scale), mean_s)


def intervals(log: SteadyLog, play: Callable[[float], Floats], mean_s: float) -> dict[str, Interval]:
    """The same for sessions that `play` gives for a scale of the rates."""
    spread = log.level_spread()
    factor = NUM_SPREADS * min(max(spread / USUAL_SPREAD, LEAST_SHARE), MOST_SHARE)
    shift = factor * math.sqrt(2) * spread
    found, lower, higher = (play(scale) for scale in (1.0, math.exp(-shift), math.exp(shift)))
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
