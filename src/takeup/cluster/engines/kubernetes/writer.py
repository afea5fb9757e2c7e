"""All pod changes requested from the API server, several at a time on kept-alive connections.

Best-effort requests, such as events, are sent by a separate thread when nothing else was requested for `QUIET_S`, so
that they delay no binding; on a server that stays busy they are sent after `LATEST_S` all the same.
"""

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import isfinite, log2
from typing import Any, TypeVar

from takeup.cluster.engines.kubernetes.client import ApiUnreachable, Client, Json, RequestRefused
from takeup.cluster.engines.kubernetes.objects import EVICTED_FOR, GANG_NODES, GATE, GRADE, LEAVE_BY, Pod
from takeup.cluster.model import Grade, Quota
from takeup.errors import BadInput

Item = TypeVar("Item")

NOT_FOUND, CONFLICT, TOO_MANY = 404, 409, 429
NUM_CONNECTIONS = 8
CLOSE_S = 10.0
QUIET_S, LATEST_S, LOOK_S = 0.1, 1.0, 0.02  # best-effort requests: idle time before, longest delay, polling interval


def stamp(when_s: float) -> str:
    """A moment as the API writes it."""
    return datetime.fromtimestamp(when_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(slots=True)
class PodWriter:
    """Binds, evicts and annotates pods."""

    client: Client
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(NUM_CONNECTIONS, "kubernetes"))
    _teller: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "kubernetes later"))
    _asked_s: float = 0.0
    _eviction_version: str = ""
    _is_closed: bool = False

    def bind(
        self, pods: Sequence[Pod], nodes: Sequence[str], gang_nodes: Sequence[str], grade: Grade
    ) -> list[Exception | None]:
        """Bind each worker to its node; for each the reason why it could not be, or None."""
        notes = {GRADE: grade.name.lower()} | ({GANG_NODES: ",".join(gang_nodes)} if len(gang_nodes) > 1 else {})
        return self._each(zip(pods, nodes, strict=True), lambda pair: self._bind(*pair, notes))

    def bind_soon(self, pod: Pod, node: str, grade: Grade) -> Future[list[Exception | None]]:
        """Bind a single pod concurrently with others; the future holds the result of `bind`."""
        self._asked_s = time.monotonic()
        return self._pool.submit(self.bind, (pod,), (node,), (node,), grade)

    def evict(self, gang: Sequence[Pod], for_job: str) -> list[Exception | None]:
        """Evict each worker, unless it has become another pod since; for each the reason why not, or None."""
        return self._each(gang, lambda pod: self._evict(pod, for_job))

    def ask_to_leave(self, gang: Sequence[Pod], by_s: float, for_job: str) -> list[Exception | None]:
        """Tell each worker by when to save its work."""
        notes = {"metadata": {"annotations": {LEAVE_BY: stamp(by_s), EVICTED_FOR: for_job}}}
        return self._each(gang, lambda pod: self._patch(pod, notes))

    def nominate(self, gang: Sequence[Pod], nodes: Sequence[str]) -> list[Exception | None]:
        """Write down which node is kept for each worker, for others and for ourselves after a restart."""
        return self._each(
            zip(gang, nodes, strict=True),
            lambda pair: self._patch(pair[0], {"status": {"nominatedNodeName": pair[1]}}, "/status"),
        )

    def explain(self, pod: Pod, reason: str, now_s: float) -> None:
        """Say in the pod's conditions why it waits."""
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": reason,
            "lastProbeTime": None,
            "lastTransitionTime": stamp(now_s),
        }
        self._patch(pod, {"status": {"conditions": [condition]}}, "/status", "strategic-")

    def later(self, action: Callable[[], object]) -> None:
        """Run a best-effort action in the background; errors are ignored."""
        self._teller.submit(self._tell, action, time.monotonic() + LATEST_S)

    def _tell(self, action: Callable[[], object], latest_s: float) -> None:
        while not self._is_closed and (now_s := time.monotonic()) < min(self._asked_s + QUIET_S, latest_s):
            time.sleep(min(LOOK_S, max(0.0, latest_s - now_s)))
        with suppress(Exception):
            action()

    def close(self) -> None:
        """Wait for requests in flight, then close all connections."""
        if self._is_closed:
            return
        self._is_closed = True
        self._teller.submit(self.client.close)
        self._teller.shutdown()
        all_here = threading.Barrier(NUM_CONNECTIONS)
        for _ in range(NUM_CONNECTIONS):
            self._pool.submit(self._hang_up, all_here)
        self._pool.shutdown()

    def _hang_up(self, all_here: threading.Barrier) -> None:
        with suppress(threading.BrokenBarrierError):
            all_here.wait(CLOSE_S)  # so that every thread of the pool takes exactly one of these
        self.client.close()

    def _each(self, items: Iterable[Item], act: Callable[[Item], object]) -> list[Exception | None]:
        def tried(item: Item) -> Exception | None:
            try:
                act(item)
            except Exception as error:
                return error
            return None

        self._asked_s = time.monotonic()
        batch = list(items)
        return [tried(batch[0])] if len(batch) == 1 else list(self._pool.map(tried, batch))

    def _bind(self, pod: Pod, node: str, notes: dict[str, str]) -> None:
        if GATE in pod.gates:
            self._patch(pod, {"spec": {"schedulingGates": [{"name": GATE, "$patch": "delete"}]}}, "", "strategic-")
        space, name = pod.key.split("/")
        body: Json = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": space, "uid": pod.uid, "annotations": notes},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        try:
            self.client.request("POST", f"{_path(pod)}/binding", body)
        except RequestRefused as error:
            if error.status == TOO_MANY:  # the server is busy, and has nothing against this pod
                raise ApiUnreachable(str(error)) from error
            if error.status != CONFLICT or not self._is_bound(pod, node):
                raise

    def _is_bound(self, pod: Pod, node: str) -> bool:
        """Whether a request of ours took effect although its response was lost."""
        found = self.client.get(_path(pod))
        return bool(found["metadata"].get("uid") == pod.uid and found["spec"].get("nodeName") == node)

    def _evict(self, pod: Pod, for_job: str) -> None:
        space, name = pod.key.split("/")
        body: Json = {
            "apiVersion": self._version(),
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": space},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        try:
            if pod.evicted_for != for_job:
                self._patch(pod, {"metadata": {"uid": pod.uid, "annotations": {EVICTED_FOR: for_job}}})
            self.client.request("POST", f"{_path(pod)}/eviction", body)
        except RequestRefused as error:
            if error.status != NOT_FOUND:
                raise

    def _version(self) -> str:
        """The version of evictions that this server knows, found out once."""
        if not self._eviction_version:
            resources: list[dict[str, Any]] = self.client.get("/api/v1").get("resources") or []
            known = [it for it in resources if it.get("name") == "pods/eviction"] or [{}]
            self._eviction_version = f"{known[0].get('group', 'policy')}/{known[0].get('version', 'v1')}"
        return self._eviction_version

    def _patch(self, pod: Pod, change: Json, part: str = "", kind: str = "") -> None:
        self.client.request("PATCH", _path(pod) + part, change, f"application/{kind}merge-patch+json")


def _path(pod: Pod) -> str:
    space, name = pod.key.split("/")
    return f"/api/v1/namespaces/{space}/pods/{name}"


@dataclass(frozen=True, slots=True)
class QuotaStore:
    """A ConfigMap whose entries are tables of promised hours and GPUs, and the safety coefficient, as JSON."""

    client: Client
    namespace: str = "takeup"
    name: str = "takeup-quotas"

    def read(self) -> dict[str, Quota]:
        """The quotas that were written last; those that cannot be read are left out."""
        try:
            found = self.client.get(self._path)
        except RequestRefused as error:
            if error.status == NOT_FOUND:
                return {}
            raise
        quotas = {pool: _quota(pool, text) for pool, text in (found.get("data") or {}).items()}
        return {pool: quota for pool, quota in quotas.items() if quota is not None}

    def write(self, quotas: Mapping[str, Quota]) -> None:
        data = {
            pool: json.dumps({"coefficient": it.coefficient} | {str(h): str(g) for h, g in it.gpus_by_hours.items()})
            for pool, it in quotas.items()
        }
        body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": self.name}, "data": data}
        try:
            self.client.request("PATCH", self._path, body)
        except RequestRefused as error:
            if error.status != NOT_FOUND:
                raise
            self.client.request("POST", self._folder, body)

    @property
    def _folder(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/configmaps"

    @property
    def _path(self) -> str:
        return f"{self._folder}/{self.name}"


def _quota(pool: str, text: str) -> Quota | None:
    try:
        offers = json.loads(text)
        coefficient = float(offers.pop("coefficient", 1.0))
        return Quota(pool, {float(hours): float(gpus) for hours, gpus in offers.items()}, coefficient=coefficient)
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError):
        return None


BOOST = "kueue.x-k8s.io/priority-boost"
MOST_BOOST = 100
GROUP = "kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")


def boosts(lost_gpu_s: Mapping[str, float], most: int = MOST_BOOST) -> dict[str, int]:
    """A boost for each workload: 0 if it would lose nothing, else logarithmic in the loss, up to `most`."""
    worst = max((log2(1 + lost) for lost in lost_gpu_s.values() if isfinite(lost)), default=0.0)
    return {
        name: most if not isfinite(lost) else round(most * log2(1 + max(0.0, lost)) / worst) if worst > 0 else 0
        for name, lost in lost_gpu_s.items()
    }


@dataclass(slots=True)
class Kueue:
    """The spot queue of a cluster, found by name; `flavors` names the flavor that stands for a pool, if not itself."""

    client: Client
    queue: str = "spot"
    gpu: str = "nvidia.com/gpu"
    flavors: Mapping[str, str] | None = None
    _version: str = ""

    def set_quota(self, quota: Quota) -> bool:
        """Set the nominal quota for spot work of a pool; False if the queue already has this value."""
        found = self.client.get(self._queue_path())
        groups: list[dict[str, Any]] = found["spec"].get("resourceGroups") or []
        resource = self._resource(groups, quota.pool)
        most = max(quota.gpus_by_hours.values(), default=0.0)
        wanted = "0" if most <= 0 else str(int(min(most, 2**31)))
        if str(resource.get("nominalQuota")) == wanted:
            return False
        resource["nominalQuota"] = wanted
        # The version guarantees that no other client has changed the queue between the two requests.
        meta = {"resourceVersion": found["metadata"]["resourceVersion"]}
        self.client.request("PATCH", self._queue_path(), {"metadata": meta, "spec": {"resourceGroups": groups}})
        return True

    def set_boosts(self, namespace: str, lost_gpu_s: Mapping[str, float]) -> int:
        """Order the workloads of a namespace by what they would lose; how many had to be changed."""
        folder = f"{self._root()}/namespaces/{namespace}/workloads"
        known = {it["metadata"]["name"]: it for it in self.client.get(folder).get("items") or []}
        wanted = boosts({name: lost for name, lost in lost_gpu_s.items() if name in known})
        changed = [name for name, boost in wanted.items() if _boost_of(known[name]) != str(boost)]
        for name in changed:
            change: Json = {"metadata": {"annotations": {BOOST: str(wanted[name])}}}
            self.client.request("PATCH", f"{folder}/{name}", change)
        return len(changed)

    def _resource(self, groups: list[dict[str, Any]], pool: str) -> dict[str, Any]:
        name = (self.flavors or {}).get(pool, pool)
        for flavor in (flavor for group in groups for flavor in group.get("flavors") or []):
            for resource in flavor.get("resources") or []:
                if flavor.get("name") == name and resource.get("name") == self.gpu:
                    found: dict[str, Any] = resource
                    return found
        raise BadInput(f"queue {self.queue!r} has no {self.gpu} of flavor {name!r}; add it, or name the flavor")

    def _queue_path(self) -> str:
        return f"{self._root()}/clusterqueues/{self.queue}"

    def _root(self) -> str:
        """The newest version that the server and we both know, found out once."""
        if not self._version:
            served = {it.get("version") for it in self.client.get(f"/apis/{GROUP}").get("versions") or []}
            known = [version for version in VERSIONS if version in served]
            if not known:
                raise BadInput(f"the cluster serves {GROUP} as {sorted(map(str, served))}; expected {VERSIONS}")
            self._version = known[0]
        return f"/apis/{GROUP}/{self._version}"


def _boost_of(workload: Json) -> str:
    return str((workload["metadata"].get("annotations") or {}).get(BOOST, "0"))
