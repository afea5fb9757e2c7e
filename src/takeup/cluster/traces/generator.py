"""Synthetic workloads with the statistics of a production fleet: sizes, durations, arrivals, organisations, levels.

Open `published.py` for the numbers, `presets.py` for the fleets. Each pool draws from separate random streams, so that
leaving one out does not change the others, and a shorter window is the end of the longer one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takeup.cluster.model import Kind, Workload
from takeup.cluster.traces.fleet_statistics import (
    MONTH_DAYS,
    NUM_DAYS,
    NUM_SPOT_JOBS,
    PRESETS,
    PROFILES,
    SPOT_MONTHLY_JOBS,
    PoolProfile,
    Preset,
)
from takeup.cluster.traces.job_distributions import (
    DAY_S,
    LONG_S,
    SHORT_S,
    JobPieces,
    Nodes,
    bursts,
    cut_before,
    draw_high_durations,
    draw_organisations,
    draw_shapes,
    draw_spot_durations,
    draw_starts,
    mean_gpus,
    monthly_to_daily,
    wrap,
)
from takeup.core.arrays import Floats, Ints
from takeup.core.seeds import Streams
from takeup.errors import BadInput, UnknownName

# The jobs of one pool: drawn for all months, then cut to the window ---------------------------------------------------

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


__all__ = ["PRESETS", "Preset", "generate"]

GUARANTEE_H, CHECKPOINT_S = 1.0, 3600.0


def generate(
    name: str, streams: Streams, num_days: int | None = None, scale: float = 1.0, pools: Sequence[str] | None = None
) -> Workload:
    """The workload of a preset, or its last `num_days`, with `scale` times its nodes and jobs, of some `pools` only."""
    if name not in PRESETS:
        raise UnknownName("cluster workload", name, PRESETS)
    preset = PRESETS[name]
    days = preset.num_days if num_days is None else num_days
    if not 1 <= days <= NUM_DAYS:
        raise BadInput(f"{days} days were asked for; choose 1 to {NUM_DAYS}")
    if not (np.isfinite(scale) and scale > 0):
        raise BadInput(f"the scale is {scale:g}; choose a number above zero")
    nodes = {pool: _scaled(sizes, scale) for pool, sizes in _chosen(name, preset, pools).items()}
    burst = bursts(streams.stream("bursts"))
    drawn = [
        PoolGenerator(PROFILES[pool], sizes, preset, days, burst, streams.child(pool)).jobs()
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
