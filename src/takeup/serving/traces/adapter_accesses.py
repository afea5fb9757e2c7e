"""Synthetic adapter trace with the popularity and the temporal locality that were measured on real services.

How it works. Every instance keeps its adapters ordered by last use. The position of an adapter in that order is its
*stack distance*; an LRU cache of c adapters misses a use exactly if its distance is above c. So the published loads
of caches of 1 to 10 adapters *are* the shares of distances 1 to 10, and sampling distances from them reproduces those
loads (the LRU stack model: Mattson et al., IBM Systems Journal 1970). For a larger distance, an adapter is sampled by
popularity. First uses on an instance (cold misses) have no distance: they add a few loads per instance.

All adapters of a request use the same random number: if the first one has a short distance, so has the second.
Measured distances are mostly those of whole sets that are used again, and this reproduces that.

What is not exact: adapters near the top of the stack are not drawn again, so the most popular ones have less than their
share (half of all uses go to 149 LoRAs of service A and to 12 of B; here 47 % and 36 % do).
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.seeds import Streams
from takeup.errors import UnknownName
from takeup.serving.model import Access

# Adapter popularity and cache behaviour on two online-retail services: published measurements -------------------------
#
# "Katz: Efficient Workflow Serving for Diffusion Models with Many Adapters", USENIX ATC 2025, section 3: table 1 (how
# many adapters a request has), the popularity of adapters, and figure 6 (loads per request with a cache of 1 to 10
# adapters on each instance). Figures are read off the vector graphics of the authors' artefact.


@dataclass(frozen=True, slots=True)
class AdapterUsage:
    """One kind of adapter on one service.

    `count_shares[n]`: requests with n of them. `cumulative`: (rank, share of uses of all up to that rank).
    `lru_loads[c - 1]` and `lfu_loads[c - 1]`: loads per request with a cache of c on each instance. `num_requests` and
    `num_instances` are those of the service, with the median and the largest number of requests of an instance.
    """

    num_instances: int
    num_requests: int
    median_requests: int
    most_requests: int
    count_shares: tuple[float, ...]
    cumulative: tuple[tuple[int, float], ...]
    lru_loads: tuple[float, ...]
    lfu_loads: tuple[float, ...]
    unique_per_request: float | None = None

    @property
    def num_adapters(self) -> int:
        return self.cumulative[-1][0]

    @property
    def mean_count(self) -> float:
        return sum(number * share for number, share in enumerate(self.count_shares))


def _ranked(total: int, *shares: float) -> tuple[tuple[int, float], ...]:
    return (*((rank, share / 100) for rank, share in enumerate(shares, start=1)), (total, 1.0))


def _points(*points: tuple[int, float]) -> tuple[tuple[int, float], ...]:
    return tuple((rank, share / 100) for rank, share in points)


_A = (165, 164_194, 933, 3_486)
_B = (302, 385_239, 723, 5_545)

MEASURED: dict[str, AdapterUsage] = {
    "a-controlnet": AdapterUsage(
        *_A,
        count_shares=(0.0, 0.305, 0.695),
        cumulative=_ranked(47, 31.1, 56.4, 73.5, 89.3, 97.6, 98.7, 98.9, 99.0, 99.1, 99.2, 99.3, 99.4),
        lru_loads=(1.534, 0.864, 0.561, 0.181, 0.012, 0.010, 0.009, 0.008, 0.008, 0.008),
        lfu_loads=(1.534, 1.005, 0.526, 0.183, 0.016, 0.012, 0.012, 0.011, 0.011, 0.010),
    ),
    "b-controlnet": AdapterUsage(
        *_B,
        count_shares=(0.019, 0.251, 0.699, 0.031),
        cumulative=_ranked(94, 22.2, 35.7, 49.2, 60.8, 71.5, 80.6, 87.8, 94.5, 96.2, 97.5, 98.8, 99.4, 99.7),
        lru_loads=(1.593, 1.036, 0.873, 0.617, 0.445, 0.290, 0.148, 0.074, 0.040, 0.011),
        lfu_loads=(1.593, 1.239, 1.036, 0.834, 0.597, 0.470, 0.359, 0.108, 0.065, 0.027),
    ),
    "a-lora": AdapterUsage(
        *_A,
        count_shares=(0.002, 0.088, 0.910),
        cumulative=_points(
            *((3, 9.3), (9, 19.3), (16, 26.0), (24, 30.1), (34, 33.6), (60, 39.5), (94, 44.7), (146, 49.8)),
            *((239, 55.7), (338, 60.2), (520, 65.8), (726, 70.1), (989, 74.2), (1329, 78.3), (1834, 82.8)),
            *((2640, 88.0), (3529, 92.4), (4501, 95.7), (6980, 100.0)),
        ),
        lru_loads=(1.880, 1.473, 1.460, 1.387, 1.371, 1.330, 1.312, 1.283, 1.264, 1.240),
        lfu_loads=(1.880, 1.862, 1.832, 1.801, 1.781, 1.761, 1.742, 1.726, 1.709, 1.694),
        unique_per_request=0.68,
    ),
    "b-lora": AdapterUsage(
        *_B,
        count_shares=(0.072, 0.736, 0.192),
        cumulative=_points(
            *((2, 26.6), (6, 40.4), (13, 52.5), (24, 60.1), (40, 65.2), (76, 70.2), (128, 73.7), (244, 78.2)),
            *((432, 82.3), (767, 86.0), (1219, 89.1), (1912, 92.2), (2691, 94.5), (4091, 97.3), (4501, 97.8)),
            (7463, 100.0),
        ),
        lru_loads=(0.894, 0.799, 0.734, 0.687, 0.648, 0.619, 0.594, 0.574, 0.556, 0.540),
        lfu_loads=(0.894, 0.806, 0.769, 0.735, 0.702, 0.678, 0.651, 0.622, 0.597, 0.575),
        unique_per_request=0.24,
    ),
}


DEPTH = 10  # of the stack, as far as it was measured


def generate_accesses(name: str, num_instances: int, seed: int) -> list[Access]:
    """Requests of one service and adapter kind, such as `a-lora`, on `num_instances` instances, grouped by instance."""
    if name not in MEASURED:
        raise UnknownName("kind of adapters", name, MEASURED)
    adapters = MEASURED[name]
    streams = Streams(seed).child(name)
    lengths = _lengths(adapters, streams.stream("lengths"), num_instances)
    popularity = _popularity(adapters)
    accesses: list[Access] = []
    for instance, length in enumerate(lengths):
        random = streams.stream(f"instance {instance}")
        accesses += (Access(instance, one) for one in _sets(adapters, popularity, random, length))
    return accesses


def interleaved(accesses: Sequence[Access]) -> list[Access]:
    """The same requests, interleaved round-robin over the instances."""
    queues: dict[int, list[Access]] = {}
    for access in accesses:
        queues.setdefault(access.instance, []).append(access)
    turns = zip_longest(*queues.values())
    return [access for turn in turns for access in turn if access is not None]


def _lengths(adapters: AdapterUsage, random: np.random.Generator, num_instances: int) -> list[int]:
    """How many requests each instance gets: lognormal, with the measured mean and median."""
    mean = adapters.num_requests / adapters.num_instances
    sigma = np.sqrt(2 * np.log(mean / adapters.median_requests))
    drawn = random.lognormal(np.log(adapters.median_requests), sigma, num_instances)
    return [int(one) for one in np.clip(drawn, 1, adapters.most_requests)]


def _popularity(adapters: AdapterUsage) -> Floats:
    """The share of uses of all adapters up to each rank."""
    ranks, shares = zip((0, 0.0), *adapters.cumulative, strict=True)
    cumulative: Floats = np.interp(np.arange(1, adapters.num_adapters + 1), ranks, shares)
    return cumulative


def _distances(adapters: AdapterUsage) -> tuple[list[float], list[float]]:
    """Shares of distances up to 1, 2, ... for the first adapter of a request, and for the others.

    The others cannot have distance 1: that would be the one before them, in the same request.
    """
    drops = -np.diff([adapters.mean_count, *adapters.lru_loads])
    num_first = 1 - adapters.count_shares[0]
    num_others = adapters.mean_count - num_first
    rest = drops.copy()
    rest[0] = 0.0
    others = rest / (adapters.mean_count - drops[0])
    first = (drops - num_others * others) / num_first
    return list(accumulate(first)), list(accumulate(others))


def _sets(
    adapters: AdapterUsage, popularity: Floats, random: np.random.Generator, num_requests: int
) -> Iterator[tuple[int, ...]]:
    """The adapters of every request of one instance."""
    counts = random.choice(len(adapters.count_shares), num_requests, p=adapters.count_shares)
    chances = random.random(num_requests)
    first, others = _distances(adapters)
    stack: list[int] = []
    for count, chance in zip(counts.tolist(), chances.tolist(), strict=True):
        chosen: list[int] = []
        for number in range(count):
            place = bisect_right(others if number else first, chance)
            adapter = _use(stack, place, chosen, popularity, random)
            chosen.append(adapter)
        yield tuple(chosen)


def _use(stack: list[int], place: int, chosen: list[int], popularity: Floats, random: np.random.Generator) -> int:
    """The adapter at this depth of the stack or the next below, else a sampled one. It is moved to the top."""
    adapter = next((one for one in stack[place:DEPTH] if one not in chosen), None)
    if adapter is None:
        adapter = _drawn(stack[:DEPTH], popularity, random)
    if adapter in stack:
        stack.remove(adapter)
    stack.insert(0, adapter)
    return adapter


def _drawn(recent: list[int], popularity: Floats, random: np.random.Generator) -> int:
    while True:
        adapter = int(np.searchsorted(popularity, random.random()))
        if adapter not in recent:
            return adapter
