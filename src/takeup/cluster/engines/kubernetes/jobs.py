"""Pods as jobs: the pods of a gang are the workers of one job, which runs, waits, or is left alone for a reason.

A gang that is bound as a whole runs; one of which no worker is bound waits, once all its workers exist. A gang that is
bound in part was interrupted: its bound workers say where the others belong, and it counts as running there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from takeup.cluster.engines.kubernetes.dialect import GATE
from takeup.cluster.engines.kubernetes.objects import GpuNode, Pod
from takeup.cluster.model import Grade, Job, Kind, Run, Waiting

Gang = tuple[Pod, ...]


def gangs_of(pods: Iterable[Pod]) -> dict[str, Gang]:
    """Our pods that are here to stay, by job; the workers of a job in the order of their names."""
    found: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        if pod.is_ours and not pod.is_leaving:
            found[pod.job_id].append(pod)
    return {job_id: tuple(sorted(gang, key=lambda pod: (len(pod.key), pod.key))) for job_id, gang in found.items()}


@dataclass(slots=True)
class JobsBuilder:
    """Jobs that run or wait. `halves` are interrupted gangs with the nodes that their unbound workers should get."""

    nodes: Mapping[str, GpuNode]
    num_evictions: Mapping[str, int]
    now_s: float
    runs: list[Run] = field(default_factory=list, init=False)
    waiting: list[Waiting] = field(default_factory=list, init=False)
    halves: dict[str, tuple[str, ...]] = field(default_factory=dict, init=False)
    reasons: dict[str, str] = field(default_factory=dict, init=False)

    def add(self, job_id: str, gang: Gang) -> None:
        """Put one job where it belongs, or say why it belongs nowhere."""
        reason = _obstacle(gang)
        if not reason and all(pod.node for pod in gang):
            reason = self._add_run(gang, tuple(pod.node for pod in gang))
        elif not reason and any(pod.node for pod in gang):
            reason = self._add_half(job_id, gang)
        elif not reason:
            reason = self._add_waiting(gang)
        if reason:
            self.reasons[job_id] = reason

    def _add_run(self, gang: Gang, places: tuple[str, ...]) -> str:
        pools = {self.nodes[name].pool if name in self.nodes else "" for name in places}
        if len(pools) != 1 or "" in pools:
            return "its nodes are gone, or belong to several pools"
        start_s = min(self.now_s, max(pod.bound_s for pod in gang if pod.node))
        saved_s = max((pod.saved_s for pod in gang if start_s <= pod.saved_s <= self.now_s), default=start_s)
        grade = Grade.HIGH if gang[0].kind == Kind.HIGH else _spot_grade(gang)
        job = self._job(gang, pools.pop(), len(places))
        self.runs.append(Run(job, places, start_s, grade, saved_s, self.num_evictions.get(job.id, 0)))
        return ""

    def _add_half(self, job_id: str, gang: Gang) -> str:
        bound = [pod for pod in gang if pod.node]
        missing = Counter(bound[0].gang_nodes) - Counter(pod.node for pod in bound)
        places = tuple(missing.elements())[: len(gang) - len(bound)]
        self.halves[job_id] = places
        return self._add_run(gang, tuple(pod.node for pod in bound) + places)

    def _add_waiting(self, gang: Gang) -> str:
        pools = {node.pool for node in self.nodes.values()}
        pool = gang[0].pool or (next(iter(pools)) if len(pools) == 1 else "")
        if len(gang) != gang[0].num_workers:
            return "some of its workers do not exist yet, or too many do"
        if any(set(pod.gates) - {GATE} for pod in gang):
            return "others keep it behind a gate"
        if pool not in pools:
            return "it names no pool that exists"
        job = self._job(gang, pool, len(gang))
        self.waiting.append(Waiting(job, max(pod.created_s for pod in gang), self.num_evictions.get(job.id, 0)))
        return ""

    def _job(self, gang: Gang, pool: str, num_workers: int) -> Job:
        first = gang[0]
        return Job(
            id=first.job_id,
            kind=first.kind,
            organisation=first.organisation,
            pool=pool,
            gpus_per_worker=float(first.gpus),
            num_workers=num_workers,
            submit_s=min(pod.created_s for pod in gang),
            guarantee_h=first.guarantee_h if first.kind == Kind.SPOT else 0.0,
            checkpoint_s=inf,
        )


def _obstacle(gang: Gang) -> str:
    first = gang[0]
    found = [pod.obstacle for pod in gang if pod.obstacle]
    if found:
        return found[0]
    if any((pod.gpus, pod.kind, pod.pool) != (first.gpus, first.kind, first.pool) for pod in gang):
        return "its workers differ"
    return "" if first.num_workers > 0 else "it does not say how many workers it has"


def _spot_grade(gang: Gang) -> Grade:
    """Nothing was promised to a pod that does not say so."""
    grades = {pod.grade for pod in gang if pod.node}
    return Grade.GUARANTEED if grades == {Grade.GUARANTEED} else Grade.OPPORTUNISTIC
