"""Pods and nodes as the API shows them, reduced to what a scheduler needs.

Nothing here fails: what is malformed is left out and named among the `doubts` of its pod.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from math import inf, isfinite
from typing import Any

from takeup.cluster.engines.kubernetes.client import Json
from takeup.cluster.engines.kubernetes.informer import key_of
from takeup.cluster.model import Grade, Kind

# The words by which a Kubernetes cluster says what we need: labels, annotations, classes, resources -------------------

GANG = "takeup/gang"  # label: pods that start together
WORKERS = "takeup/workers"  # label or annotation: how many they are
ORGANISATION = "takeup/organisation"  # label: the owning organisation; default: the namespace
GUARANTEE_HOURS = "takeup/guarantee-hours"  # annotation: the promise that a spot job asks for
CHECKPOINTS = ("takeup/last-checkpoint", "volcano.sh/last-checkpoint-time")  # annotations: RFC 3339
GATE = "takeup/quota"  # scheduling gate: a spot pod that is not even looked at before the quota admits it

# Annotations that we write
GRADE = "takeup/grade"  # on which terms it runs
GANG_NODES = "takeup/gang-nodes"  # where all workers of its gang go
EVICTED_FOR = "takeup/evicted-for"  # the job that needed the GPUs
LEAVE_BY = "takeup/leave-by"  # save your work: you are evicted then


@dataclass(frozen=True, slots=True)
class Dialect:
    """What differs from one cluster to the next."""

    scheduler_name: str = "takeup"
    gpu: str = "nvidia.com/gpu"
    pool_label: str = "nvidia.com/gpu.product"
    high_classes: tuple[str, ...] = ("takeup-high",)
    spot_classes: tuple[str, ...] = ("takeup-spot",)
    tolerated_taints: tuple[str, ...] = ("nvidia.com/gpu",)


DECIMAL = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
SUFFIXES = DECIMAL | {f"{name}i": 1024.0**power for power, name in enumerate("KMGTPE", 1)}
HAS_NO_ZONE = "it has no time zone"


@dataclass(frozen=True, slots=True)
class GpuNode:
    """A node: how many GPUs and what else its pods may have, and whether new ones should come."""

    name: str
    pool: str
    num_gpus: int
    healthy: bool
    allocatable: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod. `job_id` is what its gang shares; an `obstacle` says why we must leave it alone."""

    key: str
    uid: str
    job_id: str
    num_workers: int
    kind: Kind
    organisation: str
    pool: str
    gpus: int
    node: str
    created_s: float
    bound_s: float
    saved_s: float
    guarantee_h: float
    grade: Grade | None
    gang_nodes: tuple[str, ...]
    nominated: str
    evicted_for: str
    owner: str
    gates: tuple[str, ...]
    is_ours: bool
    is_over: bool
    is_leaving: bool
    requests: Mapping[str, float] = field(default_factory=dict)
    obstacle: str = ""
    doubts: tuple[str, ...] = ()


def read_node(thing: Json, dialect: Dialect) -> GpuNode:
    """A node that is not ready, cordoned, or tainted for others is not healthy."""
    spec, status = thing.get("spec") or {}, thing.get("status") or {}
    conditions = {it.get("type"): it.get("status") for it in status.get("conditions") or []}
    taints = [
        taint
        for taint in spec.get("taints") or []
        if taint.get("effect") != "PreferNoSchedule" and taint.get("key") not in dialect.tolerated_taints
    ]
    healthy = conditions.get("Ready") == "True" and not spec.get("unschedulable") and not taints
    pool = (thing["metadata"].get("labels") or {}).get(dialect.pool_label, "gpu")
    amount = (status.get("allocatable") or {}).get(dialect.gpu, 0)
    others = {
        name: _quantity(value) for name, value in (status.get("allocatable") or {}).items() if name != dialect.gpu
    }
    return GpuNode(thing["metadata"]["name"], str(pool), _count(amount), healthy, others)


def read_pod(thing: Json, dialect: Dialect) -> Pod:
    """A pod, with doubts about what it says wrongly."""
    meta, spec, status = thing["metadata"], thing.get("spec") or {}, thing.get("status") or {}
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    doubts: list[str] = []
    gang = f"{meta['namespace']}/{labels[GANG]}" if labels.get(GANG) else key_of(thing)
    gpus = sum(_count(_limit(it, dialect.gpu)) for it in spec.get("containers") or [])
    return Pod(
        key=key_of(thing),
        uid=str(meta.get("uid", "")),
        job_id=gang,
        num_workers=_parsed(notes | labels, WORKERS, _positive, 0 if labels.get(GANG) else 1, doubts),
        kind=Kind.HIGH if spec.get("priorityClassName") in dialect.high_classes else Kind.SPOT,
        organisation=labels.get(ORGANISATION) or meta.get("namespace", ""),
        pool=str((spec.get("nodeSelector") or {}).get(dialect.pool_label, "")),
        gpus=gpus,
        node=spec.get("nodeName") or "",
        created_s=parse_time(meta["creationTimestamp"]),
        bound_s=_bound_s(status, parse_time(meta["creationTimestamp"])),
        saved_s=max(_parsed(notes, name, parse_time, -inf, doubts) for name in CHECKPOINTS),
        guarantee_h=_parsed(notes, GUARANTEE_HOURS, _hours, 1.0, doubts),
        grade=_parsed(notes, GRADE, lambda name: Grade[name.upper()], None, doubts),
        gang_nodes=tuple(str(notes.get(GANG_NODES, "")).split(",")) if notes.get(GANG_NODES) else (),
        nominated=status.get("nominatedNodeName") or "",
        evicted_for=str(notes.get(EVICTED_FOR, "")),
        owner=_owner(meta),
        gates=tuple(str(gate.get("name")) for gate in spec.get("schedulingGates") or []),
        is_ours=spec.get("schedulerName") == dialect.scheduler_name,
        is_over=status.get("phase") in {"Succeeded", "Failed"},
        is_leaving=bool(meta.get("deletionTimestamp")),
        requests=_requests(spec, dialect),
        obstacle=_obstacle(spec, gpus, dialect),
        doubts=tuple(doubts),
    )


def parse_time(text: str) -> float:
    """Seconds since 1970 of an RFC 3339 time, which must have a zone."""
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        raise ValueError(HAS_NO_ZONE)
    return when.timestamp()


def _parsed(notes: Mapping[str, Any], name: str, read: Callable[[str], Any], otherwise: Any, doubts: list[str]) -> Any:
    if name not in notes:
        return otherwise
    try:
        return read(str(notes[name]))
    except (ValueError, KeyError, OverflowError):
        doubts.append(f"{name} is malformed")
        return otherwise


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _hours(text: str) -> float:
    hours = float(text)
    if not (isfinite(hours) and hours >= 0):
        raise ValueError(text)
    return hours


def _count(amount: object) -> int:
    """GPUs are whole numbers, and never negative."""
    text = str(amount)
    return int(text) if text.isdecimal() else 0


def _requests(spec: Json, dialect: Dialect) -> dict[str, float]:
    """What a pod asks for besides GPUs, and its place among the pods of a node."""
    total = {"pods": 1.0}
    for container in spec.get("containers") or []:
        asked = (container.get("resources") or {}).get("requests") or {}
        for name, value in asked.items():
            total[name] = total.get(name, 0.0) + _quantity(value)
    total.pop(dialect.gpu, None)
    return total


def _quantity(value: object) -> float:
    """A number with one of the suffixes of Kubernetes; what cannot be read is nothing."""
    text = str(value)
    number = text.rstrip("numkKMGTPEi")
    try:
        return float(number) * SUFFIXES[text[len(number) :]]
    except (ValueError, KeyError):
        return 0.0


def _limit(container: Json, gpu: str) -> object:
    return ((container.get("resources") or {}).get("limits") or {}).get(gpu, 0)


def _obstacle(spec: Json, gpus: int, dialect: Dialect) -> str:
    affinity = spec.get("affinity") or {}
    chooses = set(spec.get("nodeSelector") or {}) - {dialect.pool_label}
    if spec.get("priorityClassName") not in dialect.high_classes + dialect.spot_classes:
        return f"its priority class is none of {', '.join(dialect.high_classes + dialect.spot_classes)}"
    if chooses or any(affinity.get(name) for name in ("nodeAffinity", "podAffinity", "podAntiAffinity")):
        return f"it chooses nodes by more than {dialect.pool_label}"
    return "" if gpus > 0 else f"it asks for no {dialect.gpu}"


def _bound_s(status: Json, otherwise: float) -> float:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "True":
            return parse_time(condition["lastTransitionTime"]) if condition.get("lastTransitionTime") else otherwise
    return otherwise


def _owner(meta: Json) -> str:
    owners = [it.get("uid", "") for it in meta.get("ownerReferences") or [] if it.get("controller")]
    return str(owners[0]) if owners else ""
