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

import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import Any

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


def _usage(table: dict[str, Any]) -> AdapterUsage:
    return AdapterUsage(**{name: _tuples(value) for name, value in table.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


_TABLES = tomllib.loads(Path(__file__).with_name("adapter_usage.toml").read_text("utf-8"))
MEASURED = {name: _usage(table) for name, table in _TABLES.items()}

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
