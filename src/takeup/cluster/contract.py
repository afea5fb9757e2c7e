"""Protocols of cluster: scheduler, engine and quota source, with the evidence that a quota source receives.

A scheduler maps a state to decisions; an engine reports the state and applies the decisions; a quota source says how
many GPUs of a pool may be promised to spot jobs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from takeup.cluster.model import Decision, Quota, State
from takeup.core.arrays import Floats

# A scheduler is pure: the same state gives the same decisions, and no duration of a job is ever in a state. What it
# needs to remember beyond a state (a forecast, a feedback coefficient) is a value that `decide` alone changes.
# Simulated and real engines are siblings: what is decided about one state is the same everywhere. Open this first.


class Scheduler(Protocol):
    """Decides which jobs start on which nodes, wait or are evicted, and how much may be promised."""

    @property
    def name(self) -> str:
        """What reports call it."""

    def learn(self, pool: str, begun_s: float, hourly_gpus: Sequence[float]) -> None:
        """Take over the demand of past hours, the first of which began at `begun_s`; all must be over by now."""

    def decide(self, state: State) -> Sequence[Decision]:
        """What to do now, each decision with its reason, in the order in which to carry them out."""


class ClusterEngine(Protocol):
    """A real or simulated cluster."""

    def observe(self) -> State:
        """The cluster as it is now."""

    def apply(self, decision: Decision) -> None:
        """Carry one decision out; a TakeupError refuses it and leaves everything as it was."""


# Inputs of a spot quota, and the interface of its sources -------------------------------------------------------------
#
# A `QuotaSource` is queried every few minutes for how much of a pool may be promised to spot jobs. It sees evidence
# only: what runs and waits now, how demand went hour by hour, and how well promises were kept. It may keep state for
# each pool, and is queried about a pool in order of time.


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known about a pool at `now_s`. Demand is that of high-priority jobs, running and waiting, in GPUs.

    `hourly_demand[hour, organisation]` is the peak of each full hour since time 0; `demand_now` is the peak of the
    current hour so far. `num_kept` and `num_broken` count promises whose hours are over and those that an eviction
    broke, each once, since the previous query. `hourly_high_nodes` is the peak number of nodes with high-priority jobs
    in each of these hours, empty where it was not counted, and `high_nodes_now` that of the current one. `coefficient`
    is that of the quota in force: a source that begins goes on from it. An array is a view that may change later: copy
    what you keep.
    """

    now_s: float
    capacity_gpus: float
    idle_gpus: float
    spot_gpus: float
    guaranteed_gpus: float
    organisations: tuple[str, ...]
    demand_now: Floats
    hourly_demand: Floats
    num_kept: int = 0
    num_broken: int = 0
    longest_wait_s: float = 0.0
    idle_nodes: int = 0
    num_nodes: int = 0
    high_nodes_now: float = 0.0
    hourly_high_nodes: Floats = field(default_factory=lambda: np.zeros(0))
    coefficient: float = 1.0


class QuotaSource(Protocol):
    """Computes how much may be promised."""

    def quota(self, pool: str, evidence: Evidence) -> Quota:
        """How many GPUs guaranteed spot jobs of a pool may hold from now on, by the hours promised."""


@dataclass(frozen=True, slots=True)
class NoQuota:
    """Promise everything: no limit."""

    def quota(self, pool: str, evidence: Evidence) -> Quota:
        return Quota(pool, {np.inf: np.inf})


@dataclass(frozen=True, slots=True)
class StaticQuota:
    """The same share of the pool at all times."""

    capacity_share: float
    hours: tuple[float, ...] = (1.0, 2.0, 4.0)

    def quota(self, pool: str, evidence: Evidence) -> Quota:
        return Quota(pool, dict.fromkeys(self.hours, self.capacity_share * evidence.capacity_gpus))
