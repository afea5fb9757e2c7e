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

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, zip_longest

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.seeds import Streams
from takeup.errors import UnknownName
from takeup.serving.model import Access
from takeup.serving.traces.popularity import MEASURED, AdapterUsage

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
