"""Jobs of the laboratory and their records."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from takeup.core.arrays import Floats
from takeup.training.model.calls import CallLog

LoopName = Literal["ddp", "batches", "fsdp", "pipeline", "grid", "adaptive"]


@dataclass(frozen=True, slots=True)
class SlowPeriod:
    """From iteration `first` to before `last`: a rank that computes `factor` times as long, or a link with a delay.

    A link of a pipeline is two ranks, whose messages arrive `delay_s` later. For a group whose ranks reduce together it
    is all of them: their reductions take `delay_s` longer.

    Or they are slowed from outside: with `is_stopped`, ranks do not compute longer but are stopped periodically;
    with `rate_bps`, the veth links among these ranks are limited to this rate.
    """

    ranks: tuple[int, ...]
    first: int
    last: int
    factor: float = 1.0
    delay_s: float = 0.0
    is_stopped: bool = False
    rate_bps: float = 0.0

    @property
    def kind(self) -> Literal["compute", "link"]:
        """What is slow."""
        return "link" if self.delay_s or self.rate_bps else "compute"


@dataclass(frozen=True, slots=True)
class WatchedJob:
    """A training loop on several ranks.

    `ddp`, `batches` and `fsdp` have one group of all ranks, and `batches` lets a controller change shares of the batch.
    `pipeline` is a stage for each rank; `grid` is parallel pipelines of two stages, whose equal stages reduce
    together; `adaptive` is a pipeline that replans its schedule on request. An iteration computes for `compute_s`,
    mostly sleeping.
    `is_sporadic` adds occasional calls of real jobs: a broadcast to log, a barrier, an evaluation. Messages of a
    pipeline have `num_rows` rows.
    """

    kind: LoopName
    num_ranks: int = 4
    num_iterations: int = 60
    compute_s: float = 0.02
    slow: tuple[SlowPeriod, ...] = ()
    is_sporadic: bool = False
    is_watched: bool = True
    seed: int = 1
    timeout_s: float = 120.0
    num_rows: int = 8

    def to_json(self) -> str:
        """Serialize to JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WatchedJob:
        """Parse from JSON."""
        values: dict[str, Any] = json.loads(text)
        slow = tuple(SlowPeriod(**{**each, "ranks": tuple(each["ranks"])}) for each in values.pop("slow"))
        return cls(**values, slow=slow)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """Record of a job: the recorded calls, the iteration start times of every rank, and their results.

    A result is a digest of all weights; `weights` are the first of them.
    """

    logs: list[CallLog]
    starts_s: list[Floats]
    results: list[str]
    weights: list[list[float]]
    cpu_s: list[float]
    num_bad: int = 0

    @property
    def iterations_s(self) -> Floats:
        """Iteration times of the first rank, by its own clock."""
        return np.diff(self.starts_s[0])
