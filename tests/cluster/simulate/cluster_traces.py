"""Small workloads for replays: by hand, and drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from takeup.cluster.model import Kind, Workload
from takeup.core.arrays import Floats, Ints

HIGH, SPOT = Kind.HIGH, Kind.SPOT


def workload(
    *jobs: tuple[Kind, float, float, float],
    nodes: Sequence[int] = (8,),
    workers: Sequence[int] | None = None,
    checkpoint_s: float = 3600.0,
) -> Workload:
    """Jobs as (kind, GPUs, submitted at, duration) on one pool."""
    kinds, gpus, submit_s, duration_s = (np.array(column) for column in zip(*jobs, strict=True))
    count = len(jobs)
    none = np.zeros(count, np.int64)
    return Workload(
        "by hand", ("a100",), ("org",), np.zeros(len(nodes), np.int64), np.array(nodes), kinds.astype(np.int64), none,
        none, gpus.astype(float), np.array(workers or [1] * count), submit_s.astype(float), duration_s.astype(float),
        np.ones(count), np.full(count, checkpoint_s),
    )  # fmt: skip


def drawn(
    seed: int, num_jobs: int = 300, num_nodes: int = 12, load_share: float = 1.0, shared: bool = True
) -> Workload:
    """Two pools, two organisations, gangs and shared GPUs; spot and high-priority jobs mixed."""
    chance = np.random.default_rng(seed)
    gpus = chance.choice([0.25, 0.5, 1, 2, 4, 8] if shared else [1.0, 1, 2, 4, 8], num_jobs)
    workers = np.where(chance.random(num_jobs) < 0.15, 3, 1)
    duration_s = np.ceil(chance.exponential(5000, num_jobs)) + 10
    rate_hz = num_nodes * 8 * load_share / float(np.mean(gpus * workers * duration_s))
    submit_s = np.floor(np.cumsum(chance.exponential(1 / rate_hz, num_jobs)))
    return Workload(
        "drawn", ("a100", "a10"), ("red", "blue"), np.arange(num_nodes) % 2, np.full(num_nodes, 8),
        (chance.random(num_jobs) < 0.4).astype(np.int64), chance.integers(0, 2, num_jobs),
        chance.integers(0, 2, num_jobs), gpus, workers, submit_s, duration_s, chance.choice([0.0, 1.0], num_jobs),
        chance.choice([600.0, 3600.0, np.inf], num_jobs),
    )  # fmt: skip


def one_pool(
    name: str, num_nodes: int, gpus: Floats, workers: Ints, kind: Ints, times: tuple[Floats, Floats]
) -> Workload:
    """One pool of nodes of eight GPUs; `times` are arrivals and durations."""
    count, none = len(gpus), np.zeros(len(gpus), np.int64)
    return Workload(
        name, ("gpu",), ("org",), np.zeros(num_nodes, np.int64), np.full(num_nodes, 8), kind, none, none, gpus, workers,
        *times, np.where(kind == SPOT, 1.0, 0.0), np.full(count, 3600.0),
    )  # fmt: skip


def openb_like(seed: int, num_jobs: int = 500, num_nodes: int = 16, load_share: float = 1.0) -> Workload:
    """Many shared GPUs and single workers, hardly a gang, half of the jobs best effort: like the trace of v2023."""
    chance = np.random.default_rng([seed, 2023])
    gpus = chance.choice([0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0], num_jobs, p=[0.1, 0.15, 0.2, 0.4, 0.05, 0.03, 0.07])
    kind = (chance.random(num_jobs) < 0.5).astype(np.int64)
    workers = np.ones(num_jobs, np.int64)
    return one_pool("openb-like", num_nodes, gpus, workers, kind, _times(chance, 8.0 * num_nodes, gpus, load_share))


def philly_like(seed: int, num_jobs: int = 500, num_nodes: int = 16, load_share: float = 1.0) -> Workload:
    """Whole GPUs in powers of two, gangs over several nodes, long tails: like the trace of Philly."""
    chance = np.random.default_rng([seed, 2017])
    total = chance.choice([1, 2, 4, 8, 16, 32], num_jobs, p=[0.6, 0.12, 0.1, 0.12, 0.04, 0.02])
    gpus, workers = np.minimum(total, 8).astype(np.float64), np.maximum(1, total // 8)
    kind = (chance.random(num_jobs) < 0.4).astype(np.int64)
    return one_pool("philly-like", num_nodes, gpus, workers, kind, _times(chance, 8.0 * num_nodes, total, load_share))


def _times(chance: np.random.Generator, capacity: float, total: Floats, load_share: float) -> tuple[Floats, Floats]:
    """Arrivals by chance, as dense as the load asks for, and durations with a long tail."""
    duration_s = np.ceil(chance.lognormal(7.5, 1.3, len(total))) + 10
    rate_hz = capacity * load_share / float(np.mean(total * duration_s))
    return np.floor(np.cumsum(chance.exponential(1 / rate_hz, len(total)))), duration_s
