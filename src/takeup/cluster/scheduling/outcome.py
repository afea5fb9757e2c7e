"""What a replay leaves behind: for each job what became of it, for each pool and hour what ran, and why it matters.

The metrics carry the names of the paper. Three eviction rates are in use and they differ: `eviction_rate` counts
evictions against guarantee periods, `evictions_per_start` against runs, `evictions_per_job` against jobs.
"""

from dataclasses import dataclass

import numpy as np

from takeup.cluster.model import Grade, Kind
from takeup.core.arrays import Bools, Floats, Ints
from takeup.core.report import Reported

DAY_S = 86_400.0
NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True)
class DurationSummary:
    """Where times of jobs lie, in seconds."""

    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class ShareEstimate:
    """A share of one, and between which shares the true one lies with 95 % confidence."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """A window of a replay in numbers. Rates are shares of one; a rate of nothing is 0.

    JCT is the time from submission to the end, JQT the time spent waiting, before the first run and after evictions.
    Useful GPU-time is work that is never done again; restart overhead and lost work do not count. A promise is kept if
    the run was not evicted within its hours, and counts once. `promised_share` is that of spot GPU-time.
    """

    high_jct_s: DurationSummary
    high_jqt_s: DurationSummary
    spot_jct_s: DurationSummary
    spot_jqt_s: DurationSummary
    allocation_rate: float
    useful_rate: float
    eviction_rate: float
    evictions_per_start: float
    evictions_per_job: float
    promises_kept: float
    promised_share: float
    lost_gpu_s: float
    num_evictions: int
    num_jobs: int
    num_too_large: int


@dataclass(frozen=True, slots=True, eq=False)
class Outcome(Reported):
    """A replay. Job arrays follow the workload; a job that is larger than its pool has `fits` False and no times.

    Hour arrays are `[pool, hour, ...]`; the hours of a pool's series count from time 0, the last one holds what
    happened after the window. GPU-seconds and counts are also split by grade: `[pool, hour, grade]`. `wasted_gpu_s` was
    lost to evictions. `quota_gpus` is what could be promised for the shortest time, and `demand_below_gpus` the bound
    of demand behind it, NaN where no quota was computed.
    """

    scheduler: str
    workload: str
    from_s: float
    to_s: float
    pools: tuple[str, ...]
    capacity_gpus: Floats
    kind: Ints
    pool: Ints
    fits: Bools
    submit_s: Floats
    first_start_s: Floats
    end_s: Floats
    queued_s: Floats
    num_evictions: Ints
    lost_gpu_s: Floats
    allocated_gpu_s: Floats
    useful_gpu_s: Floats
    wasted_gpu_s: Floats
    num_starts: Ints
    num_kept: Ints
    num_broken: Ints
    num_promises_kept: Ints
    num_promises_broken: Ints
    demand_gpus: Floats
    quota_gpus: Floats
    num_turns: int
    demand_below_gpus: Floats | None = None

    def metrics(self, pool: str | None = None, from_s: float | None = None, to_s: float | None = None) -> Metrics:
        """The numbers of the window or of a part of it, in whole hours; of one pool or of all."""
        start_s, end_s = self.from_s if from_s is None else from_s, self.to_s if to_s is None else to_s
        chosen = slice(None) if pool is None else slice(self.pools.index(pool), self.pools.index(pool) + 1)
        hours = slice(int(start_s // 3600), max(int(start_s // 3600) + 1, int(end_s // 3600)))
        in_window = (self.submit_s >= start_s) & (self.submit_s < end_s)
        if pool is not None:
            in_window &= self.pool == self.pools.index(pool)
        total_gpu_s = float(self.capacity_gpus[chosen].sum()) * 3600.0 * (hours.stop - hours.start)
        num_kept, num_broken, num_starts = (
            table[chosen, hours].sum(axis=(0, 1)) for table in (self.num_kept, self.num_broken, self.num_starts)
        )
        done = in_window & self.fits
        spot = done & (self.kind == Kind.SPOT)
        high, jct_s = done & (self.kind == Kind.HIGH), self.end_s - self.submit_s
        promises = (
            table[chosen, hours, Grade.GUARANTEED].sum() for table in (self.num_promises_kept, self.num_promises_broken)
        )
        by_grade = self.allocated_gpu_s[chosen, hours].sum(axis=(0, 1))
        return Metrics(
            high_jct_s=summarise_durations(jct_s[high]),
            high_jqt_s=summarise_durations(self.queued_s[high]),
            spot_jct_s=summarise_durations(jct_s[spot]),
            spot_jqt_s=summarise_durations(self.queued_s[spot]),
            allocation_rate=_rate(self.allocated_gpu_s[chosen, hours].sum(), total_gpu_s),
            useful_rate=_rate(self.useful_gpu_s[chosen, hours].sum(), total_gpu_s),
            eviction_rate=_rate(num_broken.sum(), num_broken.sum() + num_kept.sum()),
            evictions_per_start=_rate(num_broken.sum(), num_starts[Grade.GUARANTEED :].sum()),
            evictions_per_job=_rate(self.num_evictions[spot].sum(), spot.sum()),
            promises_kept=_kept(*promises),
            promised_share=_rate(by_grade[Grade.GUARANTEED], by_grade[Grade.GUARANTEED :].sum()),
            lost_gpu_s=float(self.wasted_gpu_s[chosen, hours].sum()),
            num_evictions=int(num_broken.sum()),
            num_jobs=int(in_window.sum()),
            num_too_large=int((in_window & ~self.fits).sum()),
        )

    def daily(self, table: str = "allocated_gpu_s") -> Floats:
        """The GPU-seconds of a table in each whole day of the window, as a share of what all pools have."""
        num_days = int((self.to_s - self.from_s) // DAY_S)
        first = int(self.from_s // 3600)
        hours = getattr(self, table).sum(axis=(0, 2))[first : first + 24 * num_days]
        return np.asarray(hours.reshape(num_days, 24).sum(axis=1) / (self.capacity_gpus.sum() * DAY_S))

    def delivered_gpu_h(self) -> Floats:
        """GPU-hours that were allocated from the beginning to the end of each hour, until the window ends."""
        hours = self.allocated_gpu_s.sum(axis=(0, 2))[: int(self.to_s // 3600)]
        return np.asarray(np.cumsum(hours) / 3600.0)

    def broken(self) -> ShareEstimate:
        """The share of promises broken in the window.

        Evictions come together, so days, not promises, are what varies by chance.
        """
        hours = slice(int(self.from_s // 3600), max(int(self.from_s // 3600) + 1, int(self.to_s // 3600)))
        tables = (self.num_promises_broken, self.num_promises_kept)
        broken, kept = (table[:, hours, Grade.GUARANTEED].sum(axis=0) for table in tables)
        return _share_of(_by_day(broken), _by_day(broken + kept))


def _by_day(hourly: Ints) -> Floats:
    whole = np.zeros(-(-len(hourly) // 24) * 24)
    whole[: len(hourly)] = hourly
    return np.asarray(whole.reshape(-1, 24).sum(axis=1))


def _share_of(parts: Floats, wholes: Floats) -> ShareEstimate:
    """The ratio of two sums, with the error of a ratio whose terms are independent."""
    total, num = float(wholes.sum()), len(wholes)
    if total == 0:
        return ShareEstimate(0.0, 0.0, 0.0)
    mean = float(parts.sum()) / total
    error = float(np.sqrt(((parts - mean * wholes) ** 2).sum() * num / max(1, num - 1))) / total
    return ShareEstimate(mean, max(0.0, mean - NORMAL_95 * error), min(1.0, mean + NORMAL_95 * error))


def summarise_durations(values: Floats) -> DurationSummary:
    """Mean and percentiles; all 0 if there is nothing."""
    finished = values[np.isfinite(values)]
    if not len(finished):
        return DurationSummary(0.0, 0.0, 0.0, 0.0)
    return DurationSummary(float(finished.mean()), *np.percentile(finished, (50, 95, 99)).tolist())


def _rate(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else 0.0


def _kept(num_kept: float, num_broken: float) -> float:
    return float(num_kept) / float(num_kept + num_broken) if num_kept + num_broken else 1.0
