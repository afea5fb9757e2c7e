"""Synthetic workloads with the statistics of a production fleet: sizes, durations, arrivals, organisations, levels.

`fleet_statistics.py` has the numbers and the fleets. Each pool draws from separate random streams, so that
leaving one out does not change the others, and a shorter window is the end of the longer one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takeup.cluster.model import Kind, Workload
from takeup.cluster.traces import fleet_statistics as published
from takeup.cluster.traces.fleet_statistics import PRESETS, PoolProfile, Preset
from takeup.core.arrays import Floats, Ints
from takeup.core.seeds import Streams
from takeup.errors import BadInput, UnknownName

TAIL_DECAY = 0.95  # share of each tail organisation relative to the one before


def draw_organisations(profile: PoolProfile, num_jobs: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """The number of the organisation of each job."""
    known = [number for number, _ in profile.organisations]
    tail = [number for number in range(published.NUM_ORGANISATIONS) if number not in known]
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
    usual, long = (rng.choice(len(published.REQUESTS), num_jobs, p=law) for law in _request_laws(profile))
    request = np.where(is_long, long, usual)
    law = _gang_law(profile)
    workers = np.array([size for size, _ in published.GANG_LAW])[rng.choice(len(law), num_jobs, p=law)]
    is_gang = (rng.random(num_jobs) < profile.gang_share) & ~is_long & (request > 0)
    workers = np.minimum(np.where(is_gang, workers, 1), _most_workers(nodes, profile.largest_share)[request])
    gpus = np.where(request > 0, np.array(published.REQUESTS)[request], rng.choice(published.FRACTIONS, num_jobs))
    return np.minimum(gpus, max(size for size, _ in nodes)), workers.astype(np.int64)


def mean_gpus(profile: PoolProfile, nodes: Nodes) -> float:
    """GPUs of a job that is not long, on average, in a pool of these nodes."""
    sizes = np.array([size for size, _ in published.GANG_LAW])
    gangs = np.minimum(sizes, _most_workers(nodes, profile.largest_share)[:, None]) @ _gang_law(profile)
    workers = 1 + profile.gang_share * (np.maximum(gangs, 1) - 1) * (np.array(published.REQUESTS) > 0)
    gpus = np.minimum(
        np.array([sum(published.FRACTIONS) / len(published.FRACTIONS), *published.REQUESTS[1:]]),
        max(size for size, _ in nodes),
    )
    return float(_request_laws(profile)[0] @ (workers * gpus))


def _request_laws(profile: PoolProfile) -> tuple[Floats, Floats]:
    """Of usual and of long jobs."""
    usual = np.array(profile.request_shares)
    return _shares(usual), _shares(usual * published.LONG_REQUESTS)


def _gang_law(profile: PoolProfile) -> Floats:
    return _shares([count * size**profile.gang_tilt for size, count in published.GANG_LAW])


def _shares(weights: npt.ArrayLike) -> Floats:
    array = np.asarray(weights, np.float64)
    return np.asarray(array / array.sum())


def _most_workers(nodes: Nodes, largest_share: float) -> Ints:
    """For each request, how many workers fit into the share of the pool that one job may take."""
    places = [sum(count * int(size // max(request, 1.0)) for size, count in nodes) for request in published.REQUESTS]
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
    days, hours = (rng.lognormal(mean, BURST_SPREAD, num) for num in (published.NUM_DAYS, published.NUM_DAYS * 24))
    return np.asarray(np.repeat(days, 24) * hours)


def draw_high_durations(profile: PoolProfile, num_jobs: int, rng: np.random.Generator) -> Floats:
    """Seconds; the class by the shares of the model, the place in it by the law of all jobs."""
    shares = np.array(profile.duration_shares) / sum(profile.duration_shares)
    classes, place = rng.choice(len(shares), num_jobs, p=shares), rng.random(num_jobs)
    durations_s = np.empty(num_jobs)
    for number, knots in enumerate(published.DURATION_LAW):
        law, inside = np.array(knots), classes == number
        share = law[0, 0] + place[inside] * (law[-1, 0] - law[0, 0])
        durations_s[inside] = np.exp(np.interp(share, law[:, 0], np.log(law[:, 1])))
    return np.maximum(1.0, np.rint(durations_s))


def draw_spot_durations(num_jobs: int, rng: np.random.Generator) -> Floats:
    """Seconds."""
    durations_s = rng.lognormal(np.log(published.SPOT_MEDIAN_S), published.SPOT_SPREAD, num_jobs)
    return np.clip(np.rint(durations_s), 1.0, LONGEST_SPOT_S)


def draw_starts(durations_s: Floats, daily: Floats, burst: Floats, rng: np.random.Generator) -> Floats:
    """Seconds since the first day; `daily` is the level of each day, `burst` is by hour."""
    weekdays = np.array(published.WEEKDAY_ARRIVALS)[np.arange(published.NUM_DAYS) % 7]
    calm = ((daily * weekdays)[:, None] * np.array(published.HOURLY_ARRIVALS)).ravel()
    weights = (calm * burst, calm, np.repeat(daily, 24))
    length = np.searchsorted([SHORT_S, DAY_S], durations_s, side="right")
    starts_s = np.empty(len(durations_s))
    for number in range(3):
        inside = length == number
        starts_s[inside] = _draw_times(weights[number], int(inside.sum()), rng)
    starts_s -= np.where(length == 2, durations_s / 2, 0.0)
    return np.asarray(np.floor(starts_s) % (published.NUM_DAYS * DAY_S))


def monthly_to_daily(monthly: npt.ArrayLike) -> Floats:
    """A level of each month as one of each day."""
    return np.repeat(np.asarray(monthly, np.float64), published.MONTH_DAYS)


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


WINDOW_S = published.NUM_DAYS * DAY_S


@dataclass(frozen=True, slots=True)
class DrawnJobs:
    """Jobs in any order; organisations by their number."""

    kind: Ints
    organisation: Ints
    gpus: Floats
    workers: Ints
    submit_s: Floats
    duration_s: Floats


def joined(parts: list[DrawnJobs]) -> DrawnJobs:
    """All of them, one after the other."""
    return DrawnJobs(*(np.concatenate([getattr(part, name) for part in parts]) for name in DrawnJobs.__slots__))


@dataclass(frozen=True, slots=True)
class PoolGenerator:
    """Draws the jobs of a pool of these nodes, for the last `num_days` of the months."""

    profile: PoolProfile
    nodes: Nodes
    preset: Preset
    num_days: int
    burst: Floats
    streams: Streams

    def jobs(self) -> DrawnJobs:
        """High-priority jobs, then spot jobs."""
        return joined([self._high(self.streams.stream("high")), self._spot(self.streams.stream("spot"))])

    def _high(self, rng: np.random.Generator) -> DrawnJobs:
        num_jobs = round(self.profile.num_high_jobs * self._size() * self.preset.high_load)
        durations_s = self._served(draw_high_durations(self.profile, num_jobs, rng))
        starts_s = draw_starts(durations_s, monthly_to_daily(self.profile.monthly_gpus), self.burst, rng)
        pieces = _without_some_short(wrap(starts_s, durations_s, WINDOW_S), num_jobs, rng)
        return self._shaped(Kind.HIGH, pieces, durations_s >= LONG_S, rng)

    def _spot(self, rng: np.random.Generator) -> DrawnJobs:
        daily = monthly_to_daily(np.array(published.SPOT_MONTHLY_JOBS) / published.MONTH_DAYS)
        daily[: self.preset.spot_from_day] = 0.0
        share = self.profile.spot_share * self._size() * self.preset.spot_load
        num_jobs = round(published.NUM_SPOT_JOBS * share * daily.sum() / sum(published.SPOT_MONTHLY_JOBS))
        durations_s = draw_spot_durations(num_jobs, rng)
        starts_s = draw_starts(np.minimum(durations_s, DAY_S - 1), daily, self.burst, rng)
        pieces = JobPieces(np.arange(num_jobs), starts_s, durations_s)
        pieces = pieces.at(starts_s >= WINDOW_S - self.num_days * DAY_S)  # no spot job is running at time 0
        return self._shaped(Kind.SPOT, pieces, durations_s >= LONG_S, rng)

    def _shaped(
        self, kind: Kind, pieces: JobPieces, is_long: npt.NDArray[np.bool_], rng: np.random.Generator
    ) -> DrawnJobs:
        gpus, workers = draw_shapes(self.profile, self.nodes, is_long, rng)
        organisation = draw_organisations(self.profile, len(is_long), rng)
        cut = cut_before(pieces, WINDOW_S - self.num_days * DAY_S)
        kinds = np.full(len(cut.job), int(kind))
        return DrawnJobs(kinds, organisation[cut.job], gpus[cut.job], workers[cut.job], cut.starts_s, cut.durations_s)

    def _served(self, durations_s: Floats) -> Floats:
        """Durations that the nodes can serve; only jobs of at least `LONG_S` are shortened."""
        surplus = 1.0 - self.preset.most_demand_share * self.profile.num_gpus / self.profile.mean_gpus
        if surplus <= 0:
            return durations_s
        is_long = durations_s >= LONG_S
        kept = max(0.0, 1.0 - surplus * durations_s.sum() / durations_s[is_long].sum())
        return np.where(is_long, np.maximum(LONG_S, np.rint(durations_s * kept)), durations_s)

    def _size(self) -> float:
        """This pool against the published one; more jobs where the largest gangs do not fit."""
        num_gpus = sum(size * count for size, count in self.nodes)
        lost = mean_gpus(self.profile, self.profile.nodes) / mean_gpus(self.profile, self.nodes)
        return lost * num_gpus / self.profile.num_gpus


def _without_some_short(pieces: JobPieces, num_jobs: int, rng: np.random.Generator) -> JobPieces:
    """Drop random short jobs down to `num_jobs`: the published number includes jobs running at the beginning."""
    short = np.flatnonzero(pieces.durations_s < SHORT_S)
    num_surplus = min(len(pieces.job) - num_jobs, len(short))
    kept = np.ones(len(pieces.job), np.bool_)
    kept[rng.choice(short, max(0, num_surplus), replace=False)] = False
    return pieces.at(kept)


GUARANTEE_H, CHECKPOINT_S = 1.0, 3600.0


def generate(
    name: str, seed: int | Streams, num_days: int | None = None, scale: float = 1.0, pools: Sequence[str] | None = None
) -> Workload:
    """The workload of a preset, or its last `num_days`, with `scale` times its nodes and jobs, of some `pools` only."""
    if name not in PRESETS:
        raise UnknownName("cluster workload", name, PRESETS)
    preset, streams = PRESETS[name], Streams(seed) if isinstance(seed, int) else seed
    days = preset.num_days if num_days is None else num_days
    if not 1 <= days <= published.NUM_DAYS:
        raise BadInput(f"{days} days were asked for; choose 1 to {published.NUM_DAYS}")
    if not (np.isfinite(scale) and scale > 0):
        raise BadInput(f"the scale is {scale:g}; choose a number above zero")
    nodes = {pool: _scaled(sizes, scale) for pool, sizes in _chosen(name, preset, pools).items()}
    burst = bursts(streams.stream("bursts"))
    drawn = [
        PoolGenerator(published.PROFILES[pool], sizes, preset, days, burst, streams.child(pool)).jobs()
        for pool, sizes in nodes.items()
    ]
    return _workload(name, nodes, drawn)


def _chosen(name: str, preset: Preset, pools: Sequence[str] | None) -> Mapping[str, Nodes]:
    if pools is None:
        return preset.nodes
    if not pools:
        raise BadInput(f"no pool was chosen; leave `pools` out or name some of {', '.join(preset.nodes)}")
    for pool in pools:
        if pool not in preset.nodes:
            raise UnknownName(f"pool of {name}", pool, preset.nodes)
    return {pool: preset.nodes[pool] for pool in pools}


def _scaled(nodes: Nodes, scale: float) -> Nodes:
    return tuple((size, max(1, round(count * scale))) for size, count in nodes)


def _workload(name: str, nodes: Mapping[str, Nodes], drawn: list[DrawnJobs]) -> Workload:
    jobs = joined(drawn)
    pool = np.repeat(np.arange(len(drawn)), [len(part.kind) for part in drawn])
    order = np.argsort(jobs.submit_s, kind="stable")
    numbers, organisation = np.unique(jobs.organisation[order], return_inverse=True)
    node_gpus = [[size for size, count in sizes for _ in range(count)] for sizes in nodes.values()]
    return Workload(
        name=name,
        pools=tuple(nodes),
        organisations=tuple(f"organisation-{number}" for number in numbers),
        node_pool=np.repeat(np.arange(len(node_gpus)), [len(sizes) for sizes in node_gpus]),
        node_gpus=np.array([size for sizes in node_gpus for size in sizes], np.int64),
        job_kind=jobs.kind[order],
        job_pool=pool[order],
        job_organisation=organisation.astype(np.int64),
        job_gpus=jobs.gpus[order],
        job_workers=jobs.workers[order],
        job_submit_s=jobs.submit_s[order],
        job_duration_s=jobs.duration_s[order],
        job_guarantee_h=np.where(jobs.kind[order] == Kind.SPOT, GUARANTEE_H, 0.0),
        job_checkpoint_s=np.full(len(order), CHECKPOINT_S),
    )
