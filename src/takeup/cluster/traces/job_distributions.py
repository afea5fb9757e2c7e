"""Random draws for jobs: organisation, GPUs and workers, submit time and duration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takeup.cluster.traces.fleet_statistics import (
    DURATION_LAW,
    FRACTIONS,
    GANG_LAW,
    HOURLY_ARRIVALS,
    LONG_REQUESTS,
    MONTH_DAYS,
    NUM_DAYS,
    NUM_ORGANISATIONS,
    REQUESTS,
    SPOT_MEDIAN_S,
    SPOT_SPREAD,
    WEEKDAY_ARRIVALS,
    PoolProfile,
)
from takeup.core.arrays import Floats, Ints

# Owners of jobs: a few organisations own most of a pool, and a long tail owns the rest --------------------------------

TAIL_DECAY = 0.95  # share of each tail organisation relative to the one before


def draw_organisations(profile: PoolProfile, num_jobs: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """The number of the organisation of each job."""
    known = [number for number, _ in profile.organisations]
    tail = [number for number in range(NUM_ORGANISATIONS) if number not in known]
    rest = max(0.0, 1.0 - sum(share for _, share in profile.organisations))
    decay = TAIL_DECAY ** np.arange(len(tail))
    shares = np.concatenate([[share for _, share in profile.organisations], rest * decay / decay.sum()])
    return np.asarray(np.array([*known, *tail])[rng.choice(len(shares), num_jobs, p=shares / shares.sum())])


# How much a job asks for: GPUs per worker, and workers ----------------------------------------------------------------
#
# What lasts for days runs on one node and asks for little: notebooks and services.

Nodes = tuple[tuple[int, int], ...]


def draw_shapes(
    profile: PoolProfile, nodes: Nodes, is_long: npt.NDArray[np.bool_], rng: np.random.Generator
) -> tuple[Floats, Ints]:
    """GPUs per worker and number of workers, one each for every entry of `is_long`."""
    num_jobs = len(is_long)
    usual, long = (rng.choice(len(REQUESTS), num_jobs, p=law) for law in _request_laws(profile))
    request = np.where(is_long, long, usual)
    law = _gang_law(profile)
    workers = np.array([size for size, _ in GANG_LAW])[rng.choice(len(law), num_jobs, p=law)]
    is_gang = (rng.random(num_jobs) < profile.gang_share) & ~is_long & (request > 0)
    workers = np.minimum(np.where(is_gang, workers, 1), _most_workers(nodes, profile.largest_share)[request])
    gpus = np.where(request > 0, np.array(REQUESTS)[request], rng.choice(FRACTIONS, num_jobs))
    return np.minimum(gpus, max(size for size, _ in nodes)), workers.astype(np.int64)


def mean_gpus(profile: PoolProfile, nodes: Nodes) -> float:
    """GPUs of a job that is not long, on average, in a pool of these nodes."""
    sizes = np.array([size for size, _ in GANG_LAW])
    gangs = np.minimum(sizes, _most_workers(nodes, profile.largest_share)[:, None]) @ _gang_law(profile)
    workers = 1 + profile.gang_share * (np.maximum(gangs, 1) - 1) * (np.array(REQUESTS) > 0)
    gpus = np.minimum(np.array([sum(FRACTIONS) / len(FRACTIONS), *REQUESTS[1:]]), max(size for size, _ in nodes))
    return float(_request_laws(profile)[0] @ (workers * gpus))


def _request_laws(profile: PoolProfile) -> tuple[Floats, Floats]:
    """Of usual and of long jobs."""
    usual = np.array(profile.request_shares)
    return _shares(usual), _shares(usual * LONG_REQUESTS)


def _gang_law(profile: PoolProfile) -> Floats:
    return _shares([count * size**profile.gang_tilt for size, count in GANG_LAW])


def _shares(weights: npt.ArrayLike) -> Floats:
    array = np.asarray(weights, np.float64)
    return np.asarray(array / array.sum())


def _most_workers(nodes: Nodes, largest_share: float) -> Ints:
    """For each request, how many workers fit into the share of the pool that one job may take."""
    places = [sum(count * int(size // max(request, 1.0)) for size, count in nodes) for request in REQUESTS]
    return np.maximum(1, (np.array(places) * largest_share).astype(np.int64))


# When a job comes and how long it lasts -------------------------------------------------------------------------------
#
# How it works. Jobs come by the hour of the day, the day of the week and the level of the month; short ones also in
# bursts, which make hourly arrivals uneven. A job of days has its middle, not its start, where demand is high. The
# months are cut out of a busy life: a job that would last beyond their end is cut there, and the part that is missing
# runs from their beginning. So there is a stock of long-lived jobs at time 0, and demand is level from the first hour
# to the last.

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
