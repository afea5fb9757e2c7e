"""Kubernetes as an engine: watches pods and nodes, and binds or evicts exactly as decided.

Two informers follow nodes and pods. `observe` builds a state from them, and raises `StaleCache` when they may be out of
date: no decision is made on a cluster that may have changed. `apply` passes decisions to the actuator, the event
recorder and the quota store.

How the actuator works. A start binds all workers of a gang; if the server refuses one, those already bound are evicted
again. While its victims are still terminating, their GPUs are reserved for it instead, and it starts when a later round
decides so. Single pods are bound concurrently: they count as bound, and `settle` checks before the next observation
whether they were. An eviction uses the eviction subresource, so that disruption budgets hold. What did not complete at
once (a notice period, a refusal by a budget, a gang interrupted by the network) is retried by `retry_pending` in the
next round.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from math import floor
from pathlib import Path

from takeup.cluster.engines.kubernetes.client import Client, Json, RequestRefused, find_access
from takeup.cluster.engines.kubernetes.informer import Informer
from takeup.cluster.engines.kubernetes.lease import Lease
from takeup.cluster.engines.kubernetes.objects import Dialect, GpuNode, Pod, read_node, read_pod
from takeup.cluster.engines.kubernetes.snapshot import (
    BoundPod,
    Gang,
    KubernetesLedger,
    KubernetesSnapshot,
    PendingEviction,
    build_snapshot,
)
from takeup.cluster.engines.kubernetes.writer import TOO_MANY, Kueue, PodWriter, QuotaStore, stamp
from takeup.cluster.model import Decision, Evict, Grade, Hold, Kind, SetQuota, Start, State
from takeup.errors import BadInput, TakeupError

# What users see: events on their pods, and a condition that says why a pod is pending. All of it is best effort -------

REPEAT_S = 60.0  # a reason that changes all the time is not reported more often
MOST_TOLD = 10_000  # jobs whose reason is remembered
MOST_WAITING = 200  # notices under way; a server that is busy is spared the rest


@dataclass(slots=True)
class EventRecorder:
    """Emits events and conditions in the name of `component`."""

    writer: PodWriter
    component: str
    _told: dict[str, tuple[str, float]] = field(default_factory=dict)
    _num_under_way: int = 0

    def waits(self, gang: Gang, reason: str, now_s: float) -> None:
        """Report why the unbound pods of a gang are pending, once per reason and at most every `REPEAT_S`."""
        gang = tuple(pod for pod in gang if not pod.node)
        if not gang:
            return
        told, when_s = self._told.get(gang[0].job_id, ("", -REPEAT_S))
        if told == reason or now_s - when_s < REPEAT_S:
            return
        if len(self._told) > MOST_TOLD:
            self._told.clear()
        self._told[gang[0].job_id] = (reason, now_s)
        for pod in gang:
            if not pod.gates:  # one behind a gate says so already, and an autoscaler should not hear otherwise
                self._later(partial(self.writer.explain, pod, reason, now_s))
        self._event(gang[0], "Warning", "FailedScheduling", reason, now_s)

    def starts(self, gang: Gang, decision: Start, now_s: float) -> None:
        """Where these pods run, and on which terms."""
        self._told.pop(decision.job_id, None)
        for pod, node in zip(gang, decision.nodes, strict=True):
            message = f"assigned to {node}, {decision.grade.name.lower()}: {decision.reason}"
            self._event(pod, "Normal", "Scheduled", message, now_s)

    def leaves(self, gang: Gang, decision: Evict, now_s: float) -> None:
        """Report for which job these pods are evicted."""
        message = f"evicted for {decision.for_job or 'others'}: {decision.reason}"
        for pod in gang:
            self._event(pod, "Warning", "Preempted", message, now_s)

    def _event(self, pod: Pod, kind: str, reason: str, message: str, now_s: float) -> None:
        space, name = pod.key.split("/")
        event: Json = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{name}.", "namespace": space},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": space, "name": name, "uid": pod.uid},
            "type": kind,
            "reason": reason,
            "message": message[:1000],
            "source": {"component": self.component},
            "firstTimestamp": stamp(now_s),
            "lastTimestamp": stamp(now_s),
            "count": 1,
        }
        self._later(partial(self.writer.client.request, "POST", f"/api/v1/namespaces/{space}/events", event))

    def _later(self, action: Callable[[], object]) -> None:
        if self._num_under_way >= MOST_WAITING:
            return
        self._num_under_way += 1
        self.writer.later(lambda: self._tried(action))

    def _tried(self, action: Callable[[], object]) -> None:
        try:
            action()
        finally:
            self._num_under_way -= 1


EVICTION_LIMIT_S = 120.0  # how long a disruption budget may refuse an eviction
ASK_AGAIN_S = 2.0
SPARED_S = 600.0  # after giving up, no new eviction attempt for this long


@dataclass(frozen=True, slots=True)
class Actuator:
    """Changes a cluster by way of `writer`, and notes in `ledger` what the server does not show yet."""

    writer: PodWriter
    notices: EventRecorder
    ledger: KubernetesLedger
    in_flight: list[tuple[Future[list[Exception | None]], Pod, Start]] = field(default_factory=list)

    def start(self, seen: KubernetesSnapshot, decision: Start, now_s: float) -> None:
        """Bind a waiting gang, or reserve for it the GPUs that are about to become free."""
        gang = seen.gangs.get(decision.job_id, ())
        if decision.job_id in self.ledger.leaving:
            return  # it moves; its pods come back under other names
        if len(gang) != len(decision.nodes) or any(pod.node or pod.uid in self.ledger.bound for pod in gang):
            raise BadInput(f"{decision.job_id} does not wait for {len(decision.nodes)} nodes any more; observe again")
        if seen.has_room(gang, decision.nodes, self.ledger.kept, later=False):
            self._require_more_than_gpus(seen, gang, decision, now_s)
            if len(gang) == 1:
                self._bind_soon(seen, gang[0], decision, now_s)
            else:
                self._bind(seen, gang, decision.nodes, BoundPod("", now_s, decision.grade, decision.nodes))
                self.notices.starts(gang, decision, now_s)
        elif self._makes_room(gang) and seen.has_room(gang, decision.nodes, self.ledger.kept, later=True):
            if self.ledger.kept.get(decision.job_id) != decision.nodes:
                self.ledger.kept[decision.job_id] = decision.nodes
                self.writer.nominate(gang, decision.nodes)
        else:
            raise BadInput(f"{decision.job_id} finds no room on {', '.join(decision.nodes)} now; observe again")

    def _makes_room(self, gang: Gang) -> bool:
        """Whether others were evicted for it, or may be."""
        leaving = self.ledger.leaving.values()
        return gang[0].kind == Kind.HIGH or any(it.for_job == gang[0].job_id for it in leaving)

    def _bind_soon(self, seen: KubernetesSnapshot, pod: Pod, decision: Start, now_s: float) -> None:
        (node,) = decision.nodes
        self.ledger.bound[pod.uid] = BoundPod(node, now_s, decision.grade, decision.nodes)
        self.ledger.kept.pop(pod.job_id, None)
        seen.take(pod, node)
        self.in_flight.append((self.writer.bind_soon(pod, node, decision.grade), pod, decision))

    def settle(self, now_s: float) -> None:
        """Wait for the answers about single pods; a pod that the server did not bind is pending again."""
        for answer, pod, decision in self.in_flight:
            (error,) = answer.result()
            if error is None:
                self.notices.starts((pod,), decision, now_s)
            else:
                self.ledger.bound.pop(pod.uid, None)
                self.notices.waits((pod,), f"the server did not bind it: {error}", now_s)
        self.in_flight.clear()

    def _require_more_than_gpus(self, seen: KubernetesSnapshot, gang: Gang, decision: Start, now_s: float) -> None:
        """Refuse a start that lacks another resource: the kubelet would reject the pods, and they would fail."""
        lack = seen.lacks(gang, decision.nodes)
        if lack:
            self.notices.waits(gang, lack, now_s)
            raise BadInput(f"{decision.job_id} cannot start: {lack}; ask for less, or move other pods away")

    def evict(self, seen: KubernetesSnapshot, decision: Evict, now_s: float) -> None:
        """Evict a spot job, at once or after a notice."""
        run = next((run for run in seen.state.runs if run.job.id == decision.job_id), None)
        if run is None or decision.job_id in self.ledger.leaving:
            raise BadInput(f"{decision.job_id} does not run any more; observe again")
        if run.job.kind != Kind.SPOT:
            raise BadInput(f"{decision.job_id} is of high priority; only spot jobs are evicted")
        is_high = all(pod.kind == Kind.HIGH for pod in seen.gangs.get(decision.for_job, ()))
        if not is_high and not seen.state.may_move(decision.job_id, decision.for_job):
            raise BadInput(f"{decision.for_job} is a spot job; only narrower jobs without a promise move for it")
        gang = tuple(pod for pod in seen.gangs[decision.job_id] if pod.node)
        due_s = now_s + decision.notice_s
        leaving = PendingEviction(decision.for_job, now_s, due_s, due_s + EVICTION_LIMIT_S)
        if decision.notice_s > 0:
            _raise_first(self.writer.ask_to_leave(gang, due_s, decision.for_job))
            self._note_leaving(seen, gang, replace(leaving, has_notice=True))
        else:
            self._evict_gang(seen, gang, leaving, now_s)
        self.notices.leaves(gang, decision, now_s)

    def retry_pending(self, seen: KubernetesSnapshot, now_s: float) -> bool:
        """Retry what could not be completed before; True if pods were changed."""
        for job_id, reason in seen.reasons.items():
            self.notices.waits(seen.gangs[job_id], reason, now_s)
        due = [job for job, it in self.ledger.leaving.items() if _is_due(seen.gangs.get(job, ()), it, now_s)]
        for job_id in due:
            self._ask_again(seen, job_id, now_s)
        for job_id, places in seen.halves.items():
            with suppress(TakeupError):  # the next round sees what came of it
                self._complete(seen, seen.gangs[job_id], places, now_s)
        return bool(due or seen.halves)

    def _bind(self, seen: KubernetesSnapshot, pods: Gang, nodes: tuple[str, ...], terms: BoundPod) -> None:
        """Bind all of these pods; if one is refused, evict those that were bound."""
        errors = self.writer.bind(pods, nodes, terms.gang_nodes, terms.grade)
        bound = tuple(
            replace(pod, node=node) for pod, node, error in zip(pods, nodes, errors, strict=True) if error is None
        )
        for pod in bound:
            self.ledger.bound[pod.uid] = replace(terms, node=pod.node)
            seen.take(pod, pod.node)
        if any(isinstance(error, RequestRefused) for error in errors):
            self._roll_back(seen, bound, terms.when_s)
        _raise_first(errors)
        self.ledger.kept.pop(pods[0].job_id, None)

    def _roll_back(self, seen: KubernetesSnapshot, pods: Gang, now_s: float) -> None:
        if pods:
            leaving = PendingEviction("", now_s, now_s, now_s + EVICTION_LIMIT_S, counts=False)
            with suppress(TakeupError):  # the caller gets the first error, not this one
                self._evict_gang(seen, pods, leaving, now_s)

    def _evict_gang(self, seen: KubernetesSnapshot, pods: Gang, leaving: PendingEviction, now_s: float) -> None:
        """Evict pods of one job; those protected by a disruption budget are retried after `ASK_AGAIN_S`."""
        errors = self.writer.evict(pods, leaving.for_job)
        is_protected = any(isinstance(error, RequestRefused) and error.status == TOO_MANY for error in errors)
        if all(errors) and not is_protected:
            _raise_first(errors)
        if not any(errors) and leaving.counts:
            self.ledger.note_eviction(pods, now_s)
        due_s = now_s + ASK_AGAIN_S if any(errors) else leaving.give_up_s
        self._note_leaving(seen, pods, replace(leaving, due_s=due_s, has_notice=False))

    def _note_leaving(self, seen: KubernetesSnapshot, pods: Gang, leaving: PendingEviction) -> None:
        if pods[0].job_id not in self.ledger.leaving:
            for pod in pods:
                seen.coming[pod.node] += pod.gpus
        self.ledger.leaving[pods[0].job_id] = leaving

    def _ask_again(self, seen: KubernetesSnapshot, job_id: str, now_s: float) -> None:
        leaving = self.ledger.leaving[job_id]
        standing = tuple(pod for pod in seen.gangs.get(job_id, ()) if pod.node)
        if now_s >= leaving.give_up_s or not standing:
            del self.ledger.leaving[job_id]
            self.ledger.spared_until_s[job_id] = now_s + SPARED_S
            return
        with suppress(TakeupError):  # it stays in the ledger and is retried
            self._evict_gang(seen, standing, leaving, now_s)

    def _complete(self, seen: KubernetesSnapshot, gang: Gang, places: tuple[str, ...], now_s: float) -> None:
        """Bind the remaining workers of a gang to their nodes; if that is impossible, evict the bound ones."""
        bound, unbound = tuple(pod for pod in gang if pod.node), tuple(pod for pod in gang if not pod.node)
        if len(places) != len(unbound) or any(name not in seen.spare or seen.free[name] < 0 for name in places):
            return self._roll_back(seen, bound, now_s)
        grade = Grade.HIGH if gang[0].kind == Kind.HIGH else bound[0].grade or Grade.OPPORTUNISTIC
        for name in places:
            seen.free[name] += gang[0].gpus  # what was set aside for these workers
        return self._bind(seen, unbound, places, BoundPod("", now_s, grade, bound[0].gang_nodes))


def _is_due(gang: Gang, leaving: PendingEviction, now_s: float) -> bool:
    """Whether the deadline has passed or the job has saved its work; pods report whole seconds."""
    has_saved = any(pod.saved_s >= floor(leaving.asked_s) for pod in gang)
    return now_s >= leaving.due_s or (leaving.has_notice and has_saved)


def _raise_first(errors: list[Exception | None]) -> None:
    for error in errors:
        if error is not None:
            raise error


FIRST_LISTS_S = 5.0
SETTLE_S, MOST_SETTLES = 0.003, 2  # changes come in bursts; while one round acts, the next one's gather by themselves
STALE_S = 30.0


class StaleCache(TakeupError):
    """What we know of the cluster may be old, so nothing is decided by it."""


@dataclass(slots=True)
class KubernetesEngine:
    """The cluster of the kubeconfig `conf`, or of `client`; `read_only` changes nothing, whatever is decided.

    Watching starts with the first `observe` and ends with `close`. What must survive a restart is written to the API
    server. With `kueue` its spot queue gets our quotas too. With `elects` only the holder of a Lease decides and acts.
    A watch lasts `watch_s`; after two without an event the state is stale.
    """

    _: KW_ONLY
    conf: Path | None = None
    read_only: bool = False
    client: Client | None = None
    dialect: Dialect = field(default_factory=Dialect)
    kueue: Kueue | None = None
    elects: bool = False
    lease: Lease = field(init=False)
    watch_s: float = 10.0
    wall_s: Callable[[], float] = time.time
    ledger: KubernetesLedger = field(default_factory=KubernetesLedger, init=False)
    last: KubernetesSnapshot | None = field(default=None, init=False)
    _nodes: Informer[GpuNode] = field(init=False)
    _pods: Informer[Pod] = field(init=False)
    _writer: PodWriter = field(init=False)
    _notices: EventRecorder = field(init=False)
    _actuator: Actuator = field(init=False)
    _quotas: QuotaStore = field(init=False)
    _changed: threading.Event = field(default_factory=threading.Event, init=False)
    _has_begun: bool = field(default=False, init=False)
    _has_acted: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        client = self.client or Client(find_access(self.conf))
        self.client = client
        read_a_node, read_a_pod = partial(read_node, dialect=self.dialect), partial(read_pod, dialect=self.dialect)
        self._nodes = Informer(client, "/api/v1/nodes", read_a_node, self._changed.set, self.watch_s)
        self._pods = Informer(client, "/api/v1/pods", read_a_pod, self._changed.set, self.watch_s)
        self._writer = PodWriter(client)
        self._notices = EventRecorder(self._writer, self.dialect.scheduler_name)
        self._actuator = Actuator(self._writer, self._notices, self.ledger)
        self._quotas = QuotaStore(client)
        self.lease = Lease(client)

    def __enter__(self) -> KubernetesEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish what is under way, and watch no more."""
        self._nodes.stop()
        self._pods.stop()
        if self.elects:
            self.lease.release()
        self._writer.close()
        self._writer.client.close()

    @property
    def skipped(self) -> Counter[str]:
        """What the last look left out, by reason."""
        return Counter() if self.last is None else Counter(self.last.skipped)

    def wait_for_change(self, timeout_s: float) -> bool:
        """Sleep until a change and until its burst settles; False if nothing changed within `timeout_s`."""
        has_changed = self._changed.wait(timeout_s)
        self._changed.clear()
        for _ in range(MOST_SETTLES if has_changed else 0):
            if not self._changed.wait(SETTLE_S):
                break
            self._changed.clear()
        return has_changed

    def observe(self) -> State:
        """The cluster now; refuses while the API server is silent or the clock goes backwards."""
        self._begin()
        if self.elects:
            self.lease.keep()
        now_s = self.wall_s()
        self._actuator.settle(now_s)
        self._require_fresh(now_s)
        self.last = self._look(now_s)
        if self._has_acted and self._actuator.retry_pending(self.last, now_s):
            self.last = self._look(now_s)
        return self.last.state

    def apply(self, decision: Decision) -> None:
        """Carry one decision out."""
        if self.read_only:
            raise BadInput("this engine only looks; it was made with 'read_only'")
        if self.elects:
            self.lease.require()
        now_s = self.wall_s()
        self._require_fresh(now_s)
        if self.last is None or now_s - self.last.state.now_s > STALE_S:
            raise StaleCache("the last look at the cluster is too long ago; observe again")
        self._has_acted = True
        match decision:
            case Start():
                self._actuator.start(self.last, decision, now_s)
            case Evict():
                self._actuator.evict(self.last, decision, now_s)
            case Hold():
                self._notices.waits(self.last.gangs.get(decision.job_id, ()), decision.reason, now_s)
            case SetQuota():
                self._set_quota(decision)

    def _begin(self) -> None:
        """Start the watches, and wait up to `FIRST_LISTS_S` for the first lists."""
        if self._has_begun:
            return
        self._has_begun = True
        with suppress(TakeupError):  # quotas are decided again soon
            self.ledger.quotas.update(self._quotas.read())
        self._nodes.start()
        self._pods.start()
        deadline_s = time.monotonic() + FIRST_LISTS_S
        while not (self._nodes.has_tried and self._pods.has_tried) and time.monotonic() < deadline_s:
            time.sleep(0.005)

    def _look(self, now_s: float) -> KubernetesSnapshot:
        pods = self._pods.objects()
        self.ledger.tidy(pods, now_s)
        self.ledger.inherit(pods.values())
        return build_snapshot(self._nodes.objects().values(), pods.values(), self.ledger, now_s)

    def _require_fresh(self, now_s: float) -> None:
        if not (self._nodes.is_live and self._pods.is_live):
            problem = self._nodes.problem or self._pods.problem or "nothing was heard for too long"
            raise StaleCache(f"the cluster is not known: {problem}")
        if self.last is not None and now_s < self.last.state.now_s - 1:
            raise StaleCache("the clock went backwards; nothing is decided until it has caught up")

    def _set_quota(self, decision: SetQuota) -> None:
        if self.kueue is not None:
            self.kueue.set_quota(decision.quota)
        self.ledger.quotas[decision.quota.pool] = decision.quota
        self._writer.later(partial(self._quotas.write, dict(self.ledger.quotas)))
