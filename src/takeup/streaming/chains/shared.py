"""The chain that one tagged video sees in a shared cell, of constant or of changing capacity.

How it works. The tagged video needs a content of `mean_s` seconds and gets `speed * g(n) / n` seconds of video per
second, n counting itself. For a capacity that changes, the state is the pair (level of capacity, others):

    rates  =  kron(capacity rates, I)  +  for every level its own block of flow rates

There is no product form then, so the law that arrivals see comes from one linear solve over all pairs of level and
number of flows 0..K, conditioned on admission.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.streaming.chains.flows import (
    MAX_STATES,
    Counts,
    Flow,
    arrival_law,
    flow_generator,
    law_at_admission,
    population,
)
from takeup.streaming.model import Capacity, Chain

SLOWEST_FILL = 1e-9  # seconds of video per second in an outage, where nothing arrives


@dataclass(frozen=True, slots=True)
class TaggedVideo:
    """The video we follow: its fill rate when alone in the cell, its mean length, and the scatter of its service.

    `variance[n - 1]` is the variance per second of what one of n users receives, for a fill rate of 1 when alone.
    """

    speed: float
    mean_s: float
    variance: Floats | None = None


def shared_chain(
    flows: Sequence[Flow], tagged: TaggedVideo, efficiency: Floats, capacity: Capacity | None = None
) -> Chain:
    """What the tagged video sees among `flows`, at most `len(efficiency)` users at a time."""
    most = len(efficiency)
    if len(efficiency) * (1 if capacity is None else len(capacity.levels)) > MAX_STATES:
        raise BadInput(f"max_users is {most}, which makes too many states; keep it below {MAX_STATES}")
    counts, everyone = population(len(flows), most - 1), population(len(flows), most)
    if capacity is None:
        law, blocked_share = arrival_law(everyone, flows, efficiency)
        return _chain(flow_generator(counts, flows, efficiency, 1), counts, tagged, efficiency, (law, blocked_share))
    _check_connected(capacity)
    levels = [_at_level(flows, level) for level in capacity.levels]
    rates = _product_rates([flow_generator(counts, some, efficiency, 1) for some in levels], capacity)
    closed = _product_rates([flow_generator(everyone, some, efficiency, 0) for some in levels], capacity)
    total = np.tile(everyone.sum(axis=1), len(levels))
    seen = law_at_admission(stationary_law(closed), total)
    return _chain(rates, counts, tagged, efficiency, seen, capacity.levels)


def stationary_law(rates: Floats) -> Floats:
    """The law that a chain with these rates keeps; all its states must lead to each other."""
    system = rates.T.copy()
    system[-1] = 1.0
    target = np.zeros(len(rates))
    target[-1] = 1.0
    positive: Floats = np.maximum(np.linalg.solve(system, target), 0.0)
    return positive / float(positive.sum())


def _check_connected(capacity: Capacity) -> None:
    reached = (capacity.generator > 0) | np.eye(len(capacity.levels), dtype=np.bool_)
    for _ in range(len(capacity.levels).bit_length()):
        reached = reached @ reached  # in twice as many steps
    if not reached.all():
        raise BadInput("some levels of capacity are never reached again from others; connect them by rates above zero")


def _at_level(flows: Sequence[Flow], level: float) -> list[Flow]:
    return [replace(flow, alone_per_s=flow.alone_per_s * level) for flow in flows]


def _product_rates(blocks: list[Floats], capacity: Capacity) -> Floats:
    num = len(blocks[0])
    rates = np.asarray(np.kron(capacity.generator, np.eye(num)), dtype=np.float64)
    for place, block in enumerate(blocks):
        rates[place * num : (place + 1) * num, place * num : (place + 1) * num] += block
    np.fill_diagonal(rates, 0.0)
    np.fill_diagonal(rates, -rates.sum(axis=1))
    return rates


def _chain(
    rates: Floats,
    counts: Counts,
    tagged: TaggedVideo,
    efficiency: Floats,
    seen: tuple[Floats, float],
    levels: Floats | None = None,
) -> Chain:
    users = counts.sum(axis=1) + 1
    speed = tagged.speed * (np.ones(1) if levels is None else levels)
    fill = np.maximum(np.outer(speed, efficiency[users - 1] / users).ravel(), SLOWEST_FILL)
    scatter = np.zeros(len(efficiency)) if tagged.variance is None else tagged.variance
    return Chain(
        generator=rates,
        end=fill / tagged.mean_s,
        fill=fill,
        initial=seen[0],
        variance=np.outer(speed**2, scatter[users - 1]).ravel(),
        blocked_share=seen[1],
    )
