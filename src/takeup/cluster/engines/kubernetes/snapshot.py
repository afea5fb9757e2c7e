"""What a scheduler may know of a cluster now: a state built from pods, nodes and our own ledger.

GPUs held by pods of other schedulers and by jobs to be left alone are subtracted from their node, so that no plan uses
them. GPUs of terminating pods count as free: a job that needs GPUs should plan with these before further jobs are
evicted. Binding waits until the pods are really gone.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

from takeup.cluster.engines.kubernetes.objects import GATE, GpuNode, Pod
from takeup.cluster.model import Eviction, Grade, Job, Kind, Node, Quota, Run, State, Waiting

# What we have done and the API server does not show yet, or not any more: pods that were bound a moment ago, jobs that
# were told to leave, and reservations of a gang whose victims are still terminating. All of it can be lost: after a
# restart, terminating pods and nominated nodes show enough to continue without evicting twice.

DAY_S = 86_400.0
MOST_OWNERS = 10_000  # whose pods may never come back


@dataclass(frozen=True, slots=True)
class BoundPod:
    """A pod that we bound, until the watch shows it: where, when, on which terms, and where its gang went."""

    node: str
    when_s: float
    grade: Grade
    gang_nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PendingEviction:
    """A job that must go: for whom, since when it knows, from when on it is (again) evicted, and when we give up.

    With a notice it may save its work first. It `counts` as an eviction unless we only take our own start back.
    """

    for_job: str
    asked_s: float
    due_s: float
    give_up_s: float
    has_notice: bool = False
    counts: bool = True


@dataclass(slots=True)
class KubernetesLedger:
    """Only the thread that observes and applies touches it."""

    bound: dict[str, BoundPod] = field(default_factory=dict)  # by uid of the pod
    leaving: dict[str, PendingEviction] = field(default_factory=dict)  # by job
    kept: dict[str, tuple[str, ...]] = field(default_factory=dict)  # by job: a node for each worker
    spared_until_s: dict[str, float] = field(default_factory=dict)  # by job: a disruption budget protects it
    quotas: dict[str, Quota] = field(default_factory=dict)
    evictions: deque[Eviction] = field(default_factory=deque)
    num_evictions: dict[str, int] = field(default_factory=dict)  # by job
    _unclaimed: dict[str, deque[int]] = field(
        default_factory=dict
    )  # by owner: counts for the pods that replace evicted ones

    def note_eviction(self, pods: Iterable[Pod], when_s: float) -> None:
        pods = tuple(pods)
        job_id, owner = pods[0].job_id, pods[0].owner
        self.evictions.append(Eviction(job_id, when_s, tuple(pod.node for pod in pods)))
        count = self.num_evictions.get(job_id, 0) + 1
        self.num_evictions[job_id] = count
        if owner and job_id == pods[0].key:  # a lone pod comes back under another name
            self._unclaimed.setdefault(owner, deque(maxlen=1000)).append(count)

    def inherit(self, pods: Iterable[Pod]) -> None:
        """Give new pods of an owner the evictions of those that they replace."""
        for pod in pods:
            waits = pod.job_id == pod.key and not pod.node and pod.job_id not in self.num_evictions
            if waits and self._unclaimed.get(pod.owner):
                self.num_evictions[pod.job_id] = self._unclaimed[pod.owner].popleft()

    def tidy(self, pods: Mapping[str, Pod], now_s: float) -> None:
        """Forget what the pods show by themselves, and what is long ago."""
        by_uid = {pod.uid: pod for pod in pods.values()}
        jobs = {pod.job_id for pod in pods.values() if not pod.is_over}
        self.bound = {uid: it for uid, it in self.bound.items() if uid in by_uid and not by_uid[uid].node}
        here = (pod for pod in pods.values() if pod.node or pod.uid in self.bound)  # shown as bound, or about to be
        standing = {pod.job_id for pod in here if not pod.is_over and not pod.is_leaving}
        self.leaving = {job: it for job, it in self.leaving.items() if job in standing}
        self.kept = {job: nodes for job, nodes in self.kept.items() if job in jobs}
        self.spared_until_s = {job: until_s for job, until_s in self.spared_until_s.items() if until_s > now_s}
        while self.evictions and self.evictions[0].when_s < now_s - DAY_S:
            self.evictions.popleft()
        if len(self._unclaimed) > MOST_OWNERS:
            self._unclaimed.clear()
        recent = {eviction.job_id for eviction in self.evictions}
        self.num_evictions = {job: it for job, it in self.num_evictions.items() if job in jobs or job in recent}


# Pods as jobs: the pods of a gang are the workers of one job, which runs, waits, or is left alone for a reason --------
#
# A gang that is bound as a whole runs; one of which no worker is bound waits, once all its workers exist. A gang that
# is bound in part was interrupted: its bound workers say where the others belong, and it counts as running there.

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
        if all(places) and _fits(places, int(job.gpus_per_worker), free, coming):
            ledger.kept[job_id] = places
