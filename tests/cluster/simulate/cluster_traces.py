"""Small workloads for replays: by hand, and drawn from a seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from takeup.cluster.model import Kind, Workload

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
