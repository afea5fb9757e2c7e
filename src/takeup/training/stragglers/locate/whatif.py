"""What a job would gain without one of its causes of delay: simulated from the durations of its operations.

A duration is taken as the product of what its stage, its worker and the length of its sequences need; the rest is
jitter. Each cause is removed in turn, and the steps are simulated again in the order of the trace: stages balanced,
micro-batches of equal length, a worker as fast as the others of its stage. The method follows "Understanding Stragglers
in Large Model Training Using What-if Analysis" (OSDI 2025); balancing keeps the total work.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Literal

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.errors import BadInput

FASTER = 0.25  # quantile of the workers of a stage that is taken as healthy
LEAST_EXCESS = 1.05  # times the healthy workers of its stage above which a worker is a candidate
MOST_WORKERS = 8
LEAST_SAVING = 0.03  # of a step; smaller savings are no cause
Cause = Literal["worker", "stages", "sequence lengths", "jitter"]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Mean step time without a cause, and what of it is saved; `worker` is a replica and a stage."""

    cause: Cause
    step_s: float
    saved_share: float
    worker: tuple[int, int] | None = None
    factor: float = 1.0

    def __str__(self) -> str:
        match self.cause:
            case "worker":
                assert self.worker is not None
                return f"worker {self.worker[1]} of replica {self.worker[0]} is {self.factor:.2f}x as slow as its peers"
            case "stages":
                return f"the slowest stage takes {self.factor:.2f}x the mean of the stages"
            case "sequence lengths":
                return f"the longest micro-batch of a step takes {self.factor:.2f}x the mean"
            case "jitter":
                return "durations vary without a pattern"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The simulated step time, what removing each cause would save, the largest first, and the factors of workers.

    `factors[replica][stage]` compares a worker with the healthy workers of its stage.
    """

    step_s: float
    causes: tuple[WhatIf, ...]
    factors: tuple[tuple[float, ...], ...]

    @property
    def verdict(self) -> WhatIf | None:
        """The cause that costs most; None if none costs enough."""
        best = next((each for each in self.causes if each.cause != "jitter"), None)
        return best if best is not None and best.saved_share >= LEAST_SAVING else None


def diagnose(durations_s: Floats, orders: Sequence[Ints]) -> Diagnosis:
    """Durations by step, replica, stage, micro-batch and kind; the order of operations by stage."""
    network = _Network(durations_s.shape, orders)
    step_s = network.step_s(durations_s)
    worker_s = np.median(durations_s, axis=(0, 3))  # by replica, stage and kind
    stage_s = np.quantile(worker_s, FASTER, axis=0, method="lower")
    lengths = np.median(durations_s / worker_s[None, :, :, None], axis=(2, 4))  # by step, replica and micro-batch
    balanced = stage_s.mean(axis=0) / stage_s
    even = lengths.mean(axis=(1, 2), keepdims=True) / lengths
    causes = [*_workers(durations_s, worker_s, stage_s, network, step_s)]
    slowest = float((stage_s.sum(axis=1) / stage_s.sum(axis=1).mean()).max())
    longest = float(np.mean((lengths / lengths.mean(axis=(1, 2), keepdims=True)).max(axis=(1, 2))))
    for cause, scale, factor in (
        ("stages", balanced[None, None, :, None], slowest),
        ("sequence lengths", even[:, :, None, :, None], longest),
    ):
        causes.append(_without(cause, network.step_s(durations_s * scale), step_s, factor=factor))  # type: ignore[arg-type]
    model_s = worker_s[None, :, :, None] * lengths[:, :, None, :, None]
    causes.append(_without("jitter", network.step_s(np.minimum(durations_s, model_s)), step_s))
    factors = tuple(map(tuple, (worker_s / stage_s).mean(axis=2).tolist()))
    return Diagnosis(step_s, tuple(sorted(causes, key=lambda each: -each.saved_share)), factors)


def _without(
    cause: Cause, without_s: float, step_s: float, worker: tuple[int, int] | None = None, factor: float = 1.0
) -> WhatIf:
    return WhatIf(cause, without_s, 1 - without_s / step_s, worker, factor)


def _workers(
    durations_s: Floats, worker_s: Floats, stage_s: Floats, network: "_Network", step_s: float
) -> list[WhatIf]:
    """The slowest workers of their stages, each made as fast as the others of its stage."""
    factors = (worker_s / stage_s).mean(axis=2)
    places = np.argsort(-factors, axis=None)[:MOST_WORKERS]
    found = []
    for replica, stage in zip(*(each.tolist() for each in np.unravel_index(places, factors.shape)), strict=True):
        if factors[replica, stage] >= LEAST_EXCESS:
            healthy_s = durations_s.copy()
            healthy_s[:, replica, stage] *= (stage_s[stage] / worker_s[replica, stage])[None, None]
            factor = float(factors[replica, stage])
            found.append(_without("worker", network.step_s(healthy_s), step_s, (replica, stage), factor))
    return found


class _Network:
    """Operations in an order in which each comes after those it waits for: on its stage, and in its neighbours."""

    def __init__(self, shape: tuple[int, ...], orders: Sequence[Ints]) -> None:
        _, _, self._num_stages, num_microbatches, num_kinds = shape
        if len(orders) != self._num_stages or any(len(each) != num_microbatches * num_kinds for each in orders):
            raise BadInput("every stage needs an order of all its operations")
        self._steps = self._sorted([[(int(mb), int(kind)) for mb, kind in each] for each in orders])

    def _sorted(self, orders: list[list[tuple[int, int]]]) -> list[tuple[int, int, int]]:
        awaited: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
        for stage, order in enumerate(orders):
            for place, (microbatch, kind) in enumerate(order):
                before = [(stage, *each) for each in order[max(0, place - 1) : place]]
                neighbour = self._awaited(stage, kind)
                awaited[stage, microbatch, kind] = (
                    before if neighbour is None else [*before, (neighbour, microbatch, kind)]
                )
        try:
            return list(TopologicalSorter(awaited).static_order())
        except CycleError as error:
            raise BadInput("the orders of the stages wait for each other; the trace cannot be simulated") from error

    def _awaited(self, stage: int, kind: int) -> int | None:
        neighbour = stage - 1 if kind == 0 else stage + 1
        return neighbour if 0 <= neighbour < self._num_stages else None

    def step_s(self, durations_s: Floats) -> float:
        """Mean over steps of the slowest replica."""
        free_s = np.zeros((self._num_stages, *durations_s.shape[:2]))
        ends_s = np.zeros((*durations_s.shape[2:], *durations_s.shape[:2]))
        for stage, microbatch, kind in self._steps:
            awaited = self._awaited(stage, kind)
            ready_s = free_s[stage] if awaited is None else np.maximum(free_s[stage], ends_s[awaited, microbatch, kind])
            free_s[stage] = ends_s[stage, microbatch, kind] = ready_s + durations_s[:, :, stage, microbatch, kind]
        return float(free_s.max(axis=(0, 2)).mean())
