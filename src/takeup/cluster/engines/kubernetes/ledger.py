"""What we have done and the API server does not show yet, or not any more.

Three things hold GPUs without a running pod of ours: pods that were bound a moment ago, jobs that were told to leave,
and promises to a gang whose victims have not left yet. All of it can be lost: after a restart, the pods that leave and
the nodes that were nominated tell enough to go on without evicting twice.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from takeup.cluster.engines.kubernetes.objects import Pod
from takeup.cluster.model import Eviction, Grade, Quota

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
    _unclaimed: dict[str, deque[int]] = field(default_factory=dict)  # by owner: counts for the pods it makes anew

    def note_eviction(self, pods: Iterable[Pod], when_s: float) -> None:
        """A job was evicted."""
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
