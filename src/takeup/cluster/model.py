"""The nouns of cluster: nodes in pools, jobs of two kinds, what runs and what waits, and the decisions about them.

A *pool* is all GPUs of one model; jobs name the pool they want. *High-priority* jobs may use everything and push others
aside; *spot* jobs are cheap and may be evicted. A spot job of the grade *guaranteed* was promised that it runs for some
hours with some probability; an *opportunistic* one was promised nothing. All workers of a job run or none (a gang).

A `State` is what a scheduler may know: durations are not in it. A `Workload` is a whole trace as flat arrays, durations
included; only simulators see it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Bools, Floats, Ints
from takeup.errors import BadInput


class Kind(IntEnum):
    """Whether a job can evict others (HIGH) or be evicted (SPOT)."""

    HIGH = 0
    SPOT = 1


class Grade(IntEnum):
    """On which terms a job runs."""

    HIGH = 0
    GUARANTEED = 1
    OPPORTUNISTIC = 2


@dataclass(frozen=True, slots=True)
class Node:
    """A machine with GPUs of one model; `healthy` is False while it must not be used."""

    name: str
    pool: str
    num_gpus: int
    healthy: bool = True


@dataclass(frozen=True, slots=True)
class Job:
    """What was asked for. Below one GPU per worker, a worker shares a GPU with others.

    `guarantee_h` is the promise a spot job asks for; 0 asks for none. `checkpoint_s` is the time between checkpoints,
    inf for a job that loses everything when it is evicted. `only_nodes` are the nodes that it may use; None for all.
    """

    id: str
    kind: Kind
    organisation: str
    pool: str
    gpus_per_worker: float
    num_workers: int = 1
    submit_s: float = 0.0
    guarantee_h: float = 1.0
    checkpoint_s: float = 3600.0
    only_nodes: frozenset[str] | None = None

    def __post_init__(self) -> None:
        if not (np.isfinite(self.gpus_per_worker) and self.gpus_per_worker > 0):
            raise BadInput(f"job {self.id} asks for {self.gpus_per_worker:g} GPUs per worker; give a number above zero")
        if self.gpus_per_worker > 1 and self.gpus_per_worker != int(self.gpus_per_worker):
            raise BadInput(f"job {self.id} asks for {self.gpus_per_worker:g} GPUs; above one, give a whole number")
        if self.num_workers < 1:
            raise BadInput(f"job {self.id} has {self.num_workers} workers; give at least one")
        if not self.guarantee_h >= 0:
            raise BadInput(f"job {self.id} asks for a promise of {self.guarantee_h:g} hours; 0 asks for none")
        if not self.checkpoint_s > 0:
            raise BadInput(f"job {self.id} saves its work every {self.checkpoint_s:g} s; give inf if it never does")

    @property
    def num_gpus(self) -> float:
        """GPUs of all workers together."""
        return self.gpus_per_worker * self.num_workers


@dataclass(frozen=True, slots=True)
class Run:
    """A job that runs: a node for each worker, since when, on which terms, and how far its work is safe.

    `saved_s` is the moment of the last checkpoint, or the start of this run if there was none since.
    """

    job: Job
    nodes: tuple[str, ...]
    start_s: float
    grade: Grade
    saved_s: float
    num_evictions: int = 0

    def is_promised(self, now_s: float) -> bool:
        """Whether it has a promise whose hours are not over."""
        return self.grade == Grade.GUARANTEED and now_s - self.start_s < 3600.0 * self.job.guarantee_h


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job that waits: since when, and how often it was evicted before."""

    job: Job
    since_s: float
    num_evictions: int = 0


@dataclass(frozen=True, slots=True)
class Eviction:
    """An eviction of a spot job: when, and from which nodes."""

    job_id: str
    when_s: float
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Quota:
    """How many GPUs of a pool guaranteed spot jobs may hold, by the hours that are promised.

    `demand_below_gpus` is what high-priority demand stays under for the shortest of them, if it came from a forecast;
    `coefficient` is the safety coefficient it was corrected by.
    """

    pool: str
    gpus_by_hours: Mapping[float, float]
    demand_below_gpus: float | None = field(default=None, compare=False)
    coefficient: float = field(default=1.0, compare=False)


@dataclass(frozen=True, slots=True)
class State:
    """Everything a scheduler may know, at one moment.

    `nominations` are the nodes with GPUs reserved for a job which has not started yet: no other job may take them.
    """

    now_s: float
    nodes: tuple[Node, ...]
    runs: tuple[Run, ...]
    waiting: tuple[Waiting, ...]
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    evictions: tuple[Eviction, ...] = ()
    nominations: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def may_move(self, job_id: str, for_job: str) -> bool:
        """Whether a spot job without a promise may leave its nodes to a waiting job with wider workers."""
        run = next((run for run in self.runs if run.job.id == job_id), None)
        wait = next((wait for wait in self.waiting if wait.job.id == for_job), None)
        if run is None or wait is None or run.job.kind == Kind.HIGH or run.is_promised(self.now_s):
            return False
        return run.job.gpus_per_worker < wait.job.gpus_per_worker


# Decisions ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Start:
    """Run this job on these nodes now, one for each worker."""

    job_id: str
    nodes: tuple[str, ...]
    grade: Grade
    reason: str


@dataclass(frozen=True, slots=True)
class Evict:
    """Stop this spot job and queue it again, to make room for another one on these nodes."""

    job_id: str
    for_job: str
    lost_gpu_s: float
    reason: str
    notice_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Hold:
    """Leave this job waiting."""

    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class SetQuota:
    """Set how many GPUs guaranteed spot jobs of a pool may hold from now on."""

    quota: Quota
    reason: str


Decision = Start | Evict | Hold | SetQuota


@dataclass(frozen=True, slots=True)
class Offer:
    """What can be promised now: `num_gpus` GPUs for `hours` hours, kept with this probability."""

    pool: str
    num_gpus: int
    hours: float
    probability: float


# Traces ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """Jobs by submit time and the nodes they share, as flat arrays; entry i of every job array belongs to job i.

    Pools and organisations are numbered; their names lie in `pools` and `organisations`. A spot job's `guarantee_h` is
    what it asks for.
    """

    name: str
    pools: tuple[str, ...]
    organisations: tuple[str, ...]
    node_pool: Ints
    node_gpus: Ints
    job_kind: Ints
    job_pool: Ints
    job_organisation: Ints
    job_gpus: Floats
    job_workers: Ints
    job_submit_s: Floats
    job_duration_s: Floats
    job_guarantee_h: Floats
    job_checkpoint_s: Floats

    @property
    def num_jobs(self) -> int:
        return len(self.job_kind)

    @property
    def num_nodes(self) -> int:
        return len(self.node_pool)

    def __post_init__(self) -> None:
        self._check_lengths("node_", self.num_nodes)
        self._check_lengths("job_", self.num_jobs)
        self._check_values()
        self._check_numbers()

    def _check_lengths(self, prefix: str, count: int) -> None:
        for name in self.__slots__:
            if name.startswith(prefix) and len(getattr(self, name)) != count:
                raise BadInput(f"{name} has {len(getattr(self, name))} entries, expected {count}; give one for each")

    def _check_values(self) -> None:
        for name in ("job_gpus", "job_workers", "job_duration_s", "node_gpus"):
            values = getattr(self, name)
            self._require(name, np.isfinite(values) & (values > 0), "a finite number above zero")
        whole = (self.job_gpus <= 1) | (self.job_gpus == np.floor(self.job_gpus))
        self._require("job_gpus", whole, "a whole number above one")
        self._require("job_submit_s", np.isfinite(self.job_submit_s), "a finite number")
        self._require("job_guarantee_h", self.job_guarantee_h >= 0, "a number of hours, 0 for no promise")
        self._require("job_checkpoint_s", self.job_checkpoint_s > 0, "a number above zero, inf for no checkpoints")
        if (np.diff(self.job_submit_s) < 0).any():
            raise BadInput("job_submit_s goes backwards; sort jobs by the time they were submitted")

    def _check_numbers(self) -> None:
        """Kinds, pools and organisations are numbers of something that is there."""
        counts = {"job_kind": len(Kind), "job_pool": len(self.pools), "node_pool": len(self.pools)}
        for name, count in (counts | {"job_organisation": len(self.organisations)}).items():
            values = getattr(self, name)
            self._require(name, (values >= 0) & (values < count), f"a number below {count}, counted from 0")

    def _require(self, name: str, is_right: npt.NDArray[np.bool_], expected: str) -> None:
        if not is_right.all():
            place = int(np.argmin(is_right))
            raise BadInput(f"{name}[{place}] is {getattr(self, name)[place]:g}; expected {expected}")


def fits_pool(workload: Workload) -> Bools:
    """Which jobs could run if their pool were empty."""
    fits = np.zeros(workload.num_jobs, np.bool_)
    shapes = np.stack([workload.job_pool, np.maximum(1, workload.job_gpus).astype(np.int64)], axis=1)
    for pool, asked in np.unique(shapes, axis=0).tolist():
        num_places = int((workload.node_gpus[workload.node_pool == pool] // asked).sum())
        alike = (shapes[:, 0] == pool) & (shapes[:, 1] == asked)
        per_place = np.where(workload.job_gpus < 1, np.floor(1 / np.minimum(workload.job_gpus, 1)), 1)
        fits |= alike & (workload.job_workers <= num_places * per_place)
    return fits
