"""How much a job asks for: GPUs per worker, and workers.

What lasts for days runs on one node and asks for little: notebooks and services.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from takeup.cluster.traces.generated.published import FRACTIONS, GANG_LAW, LONG_REQUESTS, REQUESTS, PoolProfile
from takeup.core.arrays import Floats, Ints

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
