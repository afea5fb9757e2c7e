"""Kueue instead of our own binding: we set how much spot work it admits, and which workloads it evicts first.

Where Kueue already admits and preempts, two settings are enough. The nominal quota of the spot queue follows the
forecast; a falling quota evicts nothing by itself. The priority boost of a workload (KEP-7990, behind the feature gate
PriorityBoost) orders victims by what they would lose, inside the preemptible class only: a boost never lifts a spot
workload to the priority of others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, log2
from typing import Any

from takeup.cluster.engines.kubernetes.client import Client, Json
from takeup.cluster.model import Quota
from takeup.errors import BadInput

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
