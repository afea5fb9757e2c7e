"""Adapter decisions: which one to evict, which request to serve next, and how late a LoRA may load."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Sequence
from itertools import chain

from takeup.errors import BadInput

# How many steps an image may be denoised without its LoRAs while they are loaded: the bound K -------------------------
#
# "Katz: Efficient Workflow Serving for Diffusion Models with Many Adapters", USENIX ATC 2025, section 6. The first
# steps determine the layout, later ones the style: with and without a LoRA the latents stay similar for a while and
# then diverge. K is the last step until which they are similar. It is measured for a base model and a LoRA on runs of
# full length; for a run that starts later, or is short, the bound is smaller.

FEW_STEPS = 8
"""Models distilled to so few steps (LCM, Turbo, schnell) decide the style in the first one."""


USUAL_BOUND, PROFILED_STEPS = 10, 50
"""The bound K that Katz was evaluated with; a measured one for a LoRA is better."""


def measured_bound(similarities: Sequence[float], least: float = 0.99) -> int:
    """K from the cosine similarity of the latents with and without the LoRA after each step.

    It is the number of steps after which all similarities so far are at least `least`.
    """
    if not 0 < least <= 1:
        raise BadInput(f"the least similarity is {least:g}; give a number above 0, at most 1")
    for step, similarity in enumerate(similarities):
        if not similarity >= least:  # also true for NaN
            return step
    return len(similarities)


def bound_for(bound: int, profiled_steps: int, num_steps: int, strength: float = 1.0) -> int:
    """K for a run of `num_steps`, from the `bound` of one of `profiled_steps`.

    `strength` below 1 (image-to-image) skips the first steps, and they are subtracted from the bound. At least one
    step remains after K, because a LoRA that arrives after the last step has no effect.
    """
    if not 0 <= strength <= 1:
        raise BadInput(f"the strength is {strength:g}; give a share from 0 to 1")
    if num_steps <= FEW_STEPS:
        return 0
    scaled = bound * num_steps // max(1, profiled_steps)
    skipped = num_steps - int(num_steps * strength)
    return max(0, min(scaled - skipped, num_steps - skipped - 1))


def usual_bound(num_steps: int, strength: float = 1.0) -> int:
    """The default K for a LoRA without a measured bound."""
    return bound_for(USUAL_BOUND, PROFILED_STEPS, num_steps, strength)


# Eviction policies of the adapter cache: by recency, by frequency, or by references from waiting requests -------------
#
# A request is ready only when *all* its adapters are cached, so the adapters of one request form a group, and the queue
# holds the groups to come. A *reference* of an adapter is a waiting request that needs it; it is *effective* when the
# other adapters of that request are in the cache too (Yu et al., "LERC: Coordinated Cache Management for Data-Parallel
# Systems", GLOBECOM 2017). Among adapters without references, past use decides.
#
# The queue can also be reordered. A rule of `ORDERS` selects the next request: `fewest_loads` takes the request with
# the fewest missing adapters; `shared_loads` takes, among these, the one whose loads make most other requests ready.
# The caller (`ReorderingQueue`) bounds how often a request is overtaken.

Rank = tuple[float, ...]
Queue = Sequence[tuple[Hashable, ...]]
FEW_USES = 4
MAX_REMEMBERED = 65_536


class AdapterPolicy(ABC):
    """Ranks the adapters of one instance. The lowest rank is evicted first; ties are broken by least recent use."""

    look_ahead = False
    """Whether it is shown the queue."""

    def __init__(self) -> None:
        self.last_used: dict[Hashable, int] = {}
        self._now = 0

    @abstractmethod
    def rank(self, adapter: Hashable, cached: Collection[Hashable], queue: Queue) -> Rank:
        """The value of a cached adapter; `queue` holds the adapters of the waiting requests, in order."""

    def used(self, adapter: Hashable) -> None:
        """Record that a request used the adapter, which is now in the cache."""
        self._now += 1
        self.last_used[adapter] = self._now

    def left(self, adapter: Hashable) -> None:
        """Record that the adapter was evicted."""
        del self.last_used[adapter]

    def victim(self, cached: Collection[Hashable], queue: Queue) -> Hashable:
        """The adapter to evict: lowest rank, then least recently used."""
        return min(cached, key=lambda adapter: (*self.rank(adapter, cached, queue), self.last_used[adapter]))


class AdapterLRU(AdapterPolicy):
    """LRU: ranked by recency only."""

    def rank(self, adapter: Hashable, cached: Collection[Hashable], queue: Queue) -> Rank:
        return ()


class AdapterLFU(AdapterPolicy):
    """LFU: ranked by the number of uses since the adapter was cached."""

    def __init__(self) -> None:
        super().__init__()
        self.frequency: Counter[Hashable] = Counter()

    def rank(self, adapter: Hashable, cached: Collection[Hashable], queue: Queue) -> Rank:
        return (self.frequency[adapter],)

    def used(self, adapter: Hashable) -> None:
        super().used(adapter)
        self.frequency[adapter] += 1

    def left(self, adapter: Hashable) -> None:
        super().left(adapter)
        del self.frequency[adapter]


class AdapterGDSF(AdapterLFU):
    """Frequency with aging: the priority of the last victim plus the use count. Cherkasova's GDSF, for equal sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.age = 0.0
        self.priority: dict[Hashable, float] = {}

    def rank(self, adapter: Hashable, cached: Collection[Hashable], queue: Queue) -> Rank:
        return (self.priority[adapter],)

    def used(self, adapter: Hashable) -> None:
        super().used(adapter)
        self.priority[adapter] = self.age + self.frequency[adapter]

    def left(self, adapter: Hashable) -> None:
        super().left(adapter)
        self.age = self.priority.pop(adapter)


class AdapterLERC(AdapterPolicy):
    """LERC: by effective references in the queue, then references, then whether used often, then recency.

    Most adapters are used a few times and never again, and must not displace the others. Use counts survive eviction;
    the lower half is forgotten when there are `MAX_REMEMBERED`.
    """

    look_ahead = True

    def __init__(self) -> None:
        super().__init__()
        self.num_uses: Counter[Hashable] = Counter()

    def used(self, adapter: Hashable) -> None:
        super().used(adapter)
        self.num_uses[adapter] += 1
        if len(self.num_uses) > MAX_REMEMBERED:
            self.num_uses = Counter(dict(self.num_uses.most_common(MAX_REMEMBERED // 2)))

    def rank(self, adapter: Hashable, cached: Collection[Hashable], queue: Queue) -> Rank:
        wanting = [group for group in queue if adapter in group]
        num_effective = sum(all(peer in cached for peer in group) for group in wanting)
        return num_effective, len(wanting), self.num_uses[adapter] > FEW_USES


class AdapterFurthestNextUse(AdapterPolicy):
    """Evicts the adapter with the furthest next use in the known queue (Belady's rule); then by recency."""

    look_ahead = True

    def rank(self, adapter: Hashable, cached: Collection[Hashable], queue: Queue) -> Rank:
        place = next((number for number, one in enumerate(chain.from_iterable(queue)) if one == adapter), math.inf)
        return (-place,)


ADAPTER_POLICIES: dict[str, type[AdapterPolicy]] = {
    "lru": AdapterLRU,
    "lfu": AdapterLFU,
    "gdsf": AdapterGDSF,
    "lerc": AdapterLERC,
    "furthest_next_use": AdapterFurthestNextUse,
}


def in_order(waiting: Queue, cached: Collection[Hashable]) -> int:
    """The queue index of the request to serve next: always the first (FIFO)."""
    return 0


def fewest_loads(waiting: Queue, cached: Collection[Hashable]) -> int:
    """The queue index of the request with the fewest missing adapters; ties go to the first."""
    return min(range(len(waiting)), key=lambda place: (sum(one not in cached for one in waiting[place]), place))


def shared_loads(waiting: Queue, cached: Collection[Hashable]) -> int:
    """The request with the fewest missing adapters; among these the one whose loads make most others ready."""
    missing = [frozenset(one for one in adapters if one not in cached) for adapters in waiting]
    num_ready = Counter(missing)  # among the fewest missing, only requests with the same missing set become ready
    return min(range(len(waiting)), key=lambda place: (len(missing[place]), -num_ready[missing[place]], place))


ORDERS: dict[str, Callable[[Queue, Collection[Hashable]], int]] = {
    "in_order": in_order,
    "fewest_loads": fewest_loads,
    "shared_loads": shared_loads,
}
