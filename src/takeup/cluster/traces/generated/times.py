"""When a job comes and how long it lasts.

How it works. Jobs come by the hour of the day, the day of the week and the level of the month; short ones also in
bursts, which make hourly arrivals uneven. A job of days has its middle, not its start, where demand is high. The months
are cut out of a busy life: a job that would last beyond their end is cut there, and the part that is missing runs from
their beginning. So there is a stock of long-lived jobs at time 0, and demand is level from the first hour to the last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takeup.cluster.traces.generated.published import (
    DURATION_LAW,
    HOURLY_ARRIVALS,
    MONTH_DAYS,
    NUM_DAYS,
    SPOT_MEDIAN_S,
    SPOT_SPREAD,
    WEEKDAY_ARRIVALS,
    PoolProfile,
)
from takeup.core.arrays import Floats, Ints

HOUR_S, DAY_S = 3600.0, 86_400.0
SHORT_S, LONG_S = HOUR_S, 3 * DAY_S
BURST_SPREAD = 0.33  # of days, and of hours; with the stock of the first hour, arrivals get their Fano factor of 90
LONGEST_SPOT_S = 30 * DAY_S


def bursts(rng: np.random.Generator) -> Floats:
    """How many more short jobs come in each hour of all months; 1 on average."""
    mean = -(BURST_SPREAD**2) / 2
    days, hours = (rng.lognormal(mean, BURST_SPREAD, num) for num in (NUM_DAYS, NUM_DAYS * 24))
    return np.asarray(np.repeat(days, 24) * hours)


def draw_high_durations(profile: PoolProfile, num_jobs: int, rng: np.random.Generator) -> Floats:
    """Seconds; the class by the shares of the model, the place in it by the law of all jobs."""
    shares = np.array(profile.duration_shares) / sum(profile.duration_shares)
    classes, place = rng.choice(len(shares), num_jobs, p=shares), rng.random(num_jobs)
    durations_s = np.empty(num_jobs)
    for number, knots in enumerate(DURATION_LAW):
        law, inside = np.array(knots), classes == number
        share = law[0, 0] + place[inside] * (law[-1, 0] - law[0, 0])
        durations_s[inside] = np.exp(np.interp(share, law[:, 0], np.log(law[:, 1])))
    return np.maximum(1.0, np.rint(durations_s))


def draw_spot_durations(num_jobs: int, rng: np.random.Generator) -> Floats:
    """Seconds."""
    durations_s = rng.lognormal(np.log(SPOT_MEDIAN_S), SPOT_SPREAD, num_jobs)
    return np.clip(np.rint(durations_s), 1.0, LONGEST_SPOT_S)


def draw_starts(durations_s: Floats, daily: Floats, burst: Floats, rng: np.random.Generator) -> Floats:
    """Seconds since the first day; `daily` is the level of each day, `burst` is by hour."""
    weekdays = np.array(WEEKDAY_ARRIVALS)[np.arange(NUM_DAYS) % 7]
    calm = ((daily * weekdays)[:, None] * np.array(HOURLY_ARRIVALS)).ravel()
    weights = (calm * burst, calm, np.repeat(daily, 24))
    length = np.searchsorted([SHORT_S, DAY_S], durations_s, side="right")
    starts_s = np.empty(len(durations_s))
    for number in range(3):
        inside = length == number
        starts_s[inside] = _draw_times(weights[number], int(inside.sum()), rng)
    starts_s -= np.where(length == 2, durations_s / 2, 0.0)
    return np.asarray(np.floor(starts_s) % (NUM_DAYS * DAY_S))


def monthly_to_daily(monthly: npt.ArrayLike) -> Floats:
    """A level of each month as one of each day."""
    return np.repeat(np.asarray(monthly, np.float64), MONTH_DAYS)


def _draw_times(weights: Floats, num_times: int, rng: np.random.Generator) -> Floats:
    """Moments in hours of these weights, in seconds."""
    bounds = np.concatenate([[0.0], np.cumsum(weights)])
    return np.asarray(np.interp(rng.random(num_times) * bounds[-1], bounds, np.arange(len(bounds)) * HOUR_S))


@dataclass(frozen=True, slots=True)
class JobPieces:
    """Parts of jobs that lie inside a window: which job, from when, for how long."""

    job: Ints
    starts_s: Floats
    durations_s: Floats

    def at(self, places: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> JobPieces:
        """Only these."""
        return JobPieces(self.job[places], self.starts_s[places], self.durations_s[places])


def wrap(starts_s: Floats, durations_s: Floats, window_s: float) -> JobPieces:
    """Cut jobs at the end of the window; what is missing begins at 0, again and again if need be."""
    num_pieces = 1 + np.ceil(np.maximum(0.0, starts_s + durations_s - window_s) / window_s).astype(np.int64)
    job = np.repeat(np.arange(len(starts_s)), num_pieces)
    turn = np.arange(len(job)) - np.repeat(np.cumsum(num_pieces) - num_pieces, num_pieces)
    begin_s = np.where(turn == 0, starts_s[job], 0.0)
    end_s = np.minimum(starts_s[job] + durations_s[job] - turn * window_s, window_s)
    return JobPieces(job, begin_s, end_s - begin_s).at(end_s - begin_s >= 1.0)


def cut_before(pieces: JobPieces, from_s: float) -> JobPieces:
    """What happens after a moment, which becomes time 0; jobs under way come at 0 with the rest of their time."""
    begin_s = np.maximum(pieces.starts_s, from_s)
    left_s = pieces.starts_s + pieces.durations_s - begin_s
    return JobPieces(pieces.job, begin_s - from_s, left_s).at(left_s >= 1.0)
