"""What a scheduler may know of a cluster now: a state built from pods, nodes and our own ledger.

GPUs held by pods of other schedulers and by jobs to be left alone are subtracted from their node, so that no plan uses
them. GPUs of terminating pods count as free: a job that needs GPUs should plan with these before further jobs are
evicted. Binding waits until the pods are really gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from takeup.cluster.engines.kubernetes.jobs import Gang, JobsBuilder, gangs_of
from takeup.cluster.engines.kubernetes.ledger import KubernetesLedger
from takeup.cluster.engines.kubernetes.objects import GpuNode, Pod
from takeup.cluster.model import Job, Kind, Node, State


@dataclass(frozen=True, slots=True)
class KubernetesSnapshot:
    """A state, and what is needed to carry out decisions about it.

    `free` are GPUs that no pod holds; `coming` are held by terminating pods. `spare` is what nodes have left besides
    GPUs: a scheduler does not see it, but a node refuses pods without it. `halves` are partially bound gangs, with the
    nodes intended for their other workers. `skipped` counts what was left out, by reason.
    """

    state: State
    gangs: Mapping[str, Gang]
    free: Counter[str]
    coming: Counter[str]
    spare: Mapping[str, dict[str, float]]
    halves: Mapping[str, tuple[str, ...]]
    reasons: Mapping[str, str]
    skipped: Counter[str]

    def has_room(self, gang: Gang, nodes: Sequence[str], kept: Mapping[str, tuple[str, ...]], *, later: bool) -> bool:
        """Whether each worker fits on its node now, or `later`, in addition to what is reserved for other jobs."""
        others = ((job_id, places) for job_id, places in kept.items() if job_id != gang[0].job_id)
        also = _total((name, -self.gangs[job_id][0].gpus) for job_id, places in others for name in places)
        if later:
            also.update({name: self.coming[name] for name in nodes})
        return _fits(nodes, gang[0].gpus, self.free, also)

    def lacks(self, gang: Gang, nodes: Sequence[str]) -> str:
        """What a node has too little of for the workers it should get, besides GPUs; empty if nothing."""
        asked: dict[tuple[str, str], float] = {}
        for pod, node in zip(gang, nodes, strict=True):
            for name, amount in pod.requests.items():
                asked[node, name] = asked.get((node, name), 0.0) + amount
        short = (f"{node} lacks {name}" for (node, name), it in asked.items() if it > self.spare[node].get(name, inf))
        return next(short, "")

    def take(self, pod: Pod, node: str) -> None:
        """A pod is bound to a node."""
        self.free[node] -= pod.gpus
        _take(self.spare[node], pod)


def build_snapshot(
    nodes: Iterable[GpuNode], pods: Iterable[Pod], ledger: KubernetesLedger, now_s: float
) -> KubernetesSnapshot:
    """The cluster at this moment; the reservations in the ledger are updated by what is seen."""
    by_name = {node.name: node for node in nodes if node.num_gpus > 0}
    present = [_as_bound(pod, ledger) for pod in pods if not pod.is_over]
    gangs = gangs_of(present)
    jobs = JobsBuilder(by_name, ledger.num_evictions, now_s)
    for job_id, gang in gangs.items():
        if job_id not in ledger.leaving and job_id not in ledger.spared_until_s:
            jobs.add(job_id, gang)
    held_by_runs = _total((name, int(run.job.gpus_per_worker)) for run in jobs.runs for name in run.nodes)
    free, coming = _free(by_name, present, jobs, gangs), _coming(present, ledger)
    waiting = {wait.job.id: wait.job for wait in jobs.waiting}
    _keep(ledger, waiting, gangs, free, coming)
    state = State(
        now_s=now_s,
        nodes=tuple(
            Node(name, node.pool, max(0, free[name] + coming[name]) + held_by_runs[name], node.healthy)
            for name, node in by_name.items()
        ),
        runs=tuple(jobs.runs),
        waiting=tuple(jobs.waiting),
        quotas=dict(ledger.quotas),
        evictions=tuple(ledger.evictions),
        nominations=dict(ledger.kept),
    )
    doubts = (doubt for pod in present if pod.is_ours for doubt in pod.doubts)
    skipped = Counter(jobs.reasons.values()) + Counter(doubts)
    return KubernetesSnapshot(state, gangs, free, coming, _spare(by_name, present), jobs.halves, jobs.reasons, skipped)


def _as_bound(pod: Pod, ledger: KubernetesLedger) -> Pod:
    """A pod that we bound a moment ago, as the API server will show it."""
    bound = ledger.bound.get(pod.uid)
    if bound is None or pod.node:
        return pod
    return replace(pod, node=bound.node, bound_s=bound.when_s, grade=bound.grade, gang_nodes=bound.gang_nodes)


def _total(amounts: Iterable[tuple[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for name, amount in amounts:
        total[name] += amount
    return total


def _free(
    nodes: Mapping[str, GpuNode], pods: Iterable[Pod], jobs: JobsBuilder, gangs: Mapping[str, Gang]
) -> Counter[str]:
    """Unheld GPUs by node; negative where more are allocated than the node has."""
    free = Counter({name: node.num_gpus for name, node in nodes.items()})
    free.subtract(_total((pod.node, pod.gpus) for pod in pods if pod.node in nodes))
    planned = ((name, gangs[job_id][0].gpus) for job_id, places in jobs.halves.items() for name in places)
    free.subtract(_total((name, gpus) for name, gpus in planned if name in nodes))
    return free


def _coming(pods: Iterable[Pod], ledger: KubernetesLedger) -> Counter[str]:
    """GPUs by node that are held by terminating pods."""
    return _total((pod.node, pod.gpus) for pod in pods if pod.node and _leaves(pod, ledger))


def _spare(nodes: Mapping[str, GpuNode], pods: Iterable[Pod]) -> dict[str, dict[str, float]]:
    spare = {name: dict(node.allocatable) for name, node in nodes.items()}
    for pod in pods:
        if pod.node in spare:
            _take(spare[pod.node], pod)
    return spare


def _take(spare: dict[str, float], pod: Pod) -> None:
    for name, amount in pod.requests.items():
        if name in spare:
            spare[name] -= amount


def _leaves(pod: Pod, ledger: KubernetesLedger) -> bool:
    return pod.is_leaving or pod.job_id in ledger.leaving


def _fits(nodes: Iterable[str], gpus: int, free: Mapping[str, int], also: Mapping[str, int]) -> bool:
    return all(free.get(name, 0) + also.get(name, 0) >= count * gpus for name, count in Counter(nodes).items())


def _keep(
    ledger: KubernetesLedger,
    waiting: Mapping[str, Job],
    gangs: Mapping[str, Gang],
    free: Mapping[str, int],
    coming: Mapping[str, int],
) -> None:
    """Drop reservations that no longer fit, and restore those that the API server still knows of."""
    known, ledger.kept = ledger.kept, {}
    for job_id, job in waiting.items():
        places = known.get(job_id) or tuple(pod.nominated for pod in gangs[job_id])
        if job.kind == Kind.HIGH and all(places) and _fits(places, int(job.gpus_per_worker), free, coming):
            ledger.kept[job_id] = places
