"""Kubernetes as an engine: watches pods and nodes, and binds or evicts exactly as decided.

Two informers follow nodes and pods. `observe` builds a state from them, and raises `StaleCache` when they may be out of
date: no decision is made on a cluster that may have changed. `apply` passes decisions to the actuator, the event
recorder and the quota store.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path

from takeup.cluster.engines.kubernetes.actuator import Actuator, EventRecorder
from takeup.cluster.engines.kubernetes.client import Client, find_access
from takeup.cluster.engines.kubernetes.informer import Informer
from takeup.cluster.engines.kubernetes.kueue import Kueue
from takeup.cluster.engines.kubernetes.ledger import KubernetesLedger
from takeup.cluster.engines.kubernetes.objects import Dialect, GpuNode, Pod, read_node, read_pod
from takeup.cluster.engines.kubernetes.snapshot import KubernetesSnapshot, build_snapshot
from takeup.cluster.engines.kubernetes.writer import PodWriter, QuotaStore
from takeup.cluster.model import Decision, Evict, Hold, SetQuota, Start, State
from takeup.errors import BadInput, TakeupError

FIRST_LISTS_S = 5.0
SETTLE_S, MOST_SETTLES = 0.003, 2  # changes come in bursts; while one round acts, the next one's gather by themselves
STALE_S = 30.0


class StaleCache(TakeupError):
    """What we know of the cluster may be old, so nothing is decided by it."""


@dataclass(slots=True)
class KubernetesEngine:
    """The cluster of the kubeconfig `conf`, or of `client`; `read_only` changes nothing, whatever is decided.

    Watching starts with the first `observe` and ends with `close`. What must survive a restart is written to the API
    server. With `kueue` its spot queue gets our quotas too. A watch lasts `watch_s`; after two without an event the
    state is stale.
    """

    _: KW_ONLY
    conf: Path | None = None
    read_only: bool = False
    client: Client | None = None
    dialect: Dialect = field(default_factory=Dialect)
    kueue: Kueue | None = None
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

    def __enter__(self) -> KubernetesEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish what is under way, and watch no more."""
        self._nodes.stop()
        self._pods.stop()
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
            raise StaleCache(f"the cluster is not known: {self._problem()}")
        if self.last is not None and now_s < self.last.state.now_s - 1:
            raise StaleCache("the clock went backwards; nothing is decided until it has caught up")

    def _problem(self) -> str:
        return self._nodes.problem or self._pods.problem or "nothing was heard for too long"

    def _set_quota(self, decision: SetQuota) -> None:
        if self.kueue is not None:
            self.kueue.set_quota(decision.quota)
        self.ledger.quotas[decision.quota.pool] = decision.quota
        self._writer.later(partial(self._quotas.write, dict(self.ledger.quotas)))
