"""The words by which a Kubernetes cluster says what we need: labels, annotations, classes, resources."""

from __future__ import annotations

from dataclasses import dataclass

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
