"""The jobs of one pool: drawn for all months, then cut to the window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takeup.cluster.model import Kind
from takeup.cluster.traces.generated.organisations import draw_organisations
from takeup.cluster.traces.generated.presets import Preset
from takeup.cluster.traces.generated.published import (
    MONTH_DAYS,
    NUM_DAYS,
    NUM_SPOT_JOBS,
    SPOT_MONTHLY_JOBS,
    PoolProfile,
)
from takeup.cluster.traces.generated.shapes import Nodes, draw_shapes, mean_gpus
from takeup.cluster.traces.generated.times import (
    DAY_S,
    LONG_S,
    SHORT_S,
    JobPieces,
    cut_before,
    draw_high_durations,
    draw_spot_durations,
    draw_starts,
    monthly_to_daily,
    wrap,
)
from takeup.core.arrays import Floats, Ints
from takeup.core.seeds import Streams

WINDOW_S = NUM_DAYS * DAY_S


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
        daily = monthly_to_daily(np.array(SPOT_MONTHLY_JOBS) / MONTH_DAYS)
        daily[: self.preset.spot_from_day] = 0.0
        share = self.profile.spot_share * self._size() * self.preset.spot_load
        num_jobs = round(NUM_SPOT_JOBS * share * daily.sum() / sum(SPOT_MONTHLY_JOBS))
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
