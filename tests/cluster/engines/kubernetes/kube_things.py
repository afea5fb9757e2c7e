"""Nodes and pods as the API wants them, and the classes they name."""

from __future__ import annotations

from typing import Any

from takeup.cluster.engines.kubernetes.client import Client, RequestRefused

Json = dict[str, Any]

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
CLASSES = {"takeup-high": (1000, "PreemptLowerPriority"), "takeup-spot": (-10, "Never")}


def node(name: str, gpus: int = 8, pool: str = "a100") -> Json:
    room = {"nvidia.com/gpu": str(gpus), "cpu": "128", "memory": "1Ti", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"nvidia.com/gpu.product": pool}},
        "status": {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def pod(name: str, gpus: int = 2, kind: str = "spot", scheduler: str = "takeup", **more: Any) -> Json:
    """`gang` and `workers` make it a worker; `notes` are annotations; `selector` chooses nodes."""
    labels = {"takeup/gang": more["gang"], "takeup/workers": str(more["workers"])} if "gang" in more else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": labels | more.get("labels", {}),
            "annotations": more.get("notes", {}),
        },
        "spec": {
            "schedulerName": scheduler,
            "priorityClassName": f"takeup-{kind}",
            "containers": [{"name": "main", "image": "none", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}],
        }
        | ({"nodeSelector": more["selector"]} if "selector" in more else {})
        | ({"schedulingGates": [{"name": it} for it in more["gates"]]} if "gates" in more else {}),
    }


def gang(name: str, workers: int, gpus: int = 8, kind: str = "high", scheduler: str = "takeup") -> list[Json]:
    return [pod(f"{name}-{i}", gpus, kind, scheduler, gang=name, workers=workers) for i in range(workers)]


def create_classes(client: Client) -> None:
    for name, (value, policy) in CLASSES.items():
        body = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "preemptionPolicy": policy,
        }
        try:
            client.request("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
        except RequestRefused as error:
            if error.status != 409:
                raise


def create_nodes(client: Client, count: int, gpus: int = 8) -> None:
    """Nodes that are ready, without the taint that the server gives to new ones."""
    for number in range(count):
        thing = node(f"n{number}", gpus)
        client.request("POST", NODES, thing)
        client.request("PATCH", f"{NODES}/n{number}", {"spec": {"taints": None}})
        client.request("PATCH", f"{NODES}/n{number}/status", {"status": thing["status"]})


def create_pods(client: Client, pods: list[Json]) -> None:
    for thing in pods:
        client.request("POST", PODS, thing)


def nodes_of(client: Client) -> dict[str, str]:
    """Where each pod that is here to stay is bound to; empty for those that wait."""
    pods = client.get(PODS)["items"]
    return {
        it["metadata"]["name"]: it["spec"].get("nodeName", "")
        for it in pods
        if "deletionTimestamp" not in it["metadata"]
    }
