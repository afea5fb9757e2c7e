"""What really happened on a Slurm cluster, as a workload that can be replayed under another scheduler.

A job that was evicted has several runs in the accounting database; its duration is all the time it ran, lost work
included, which is what an observer can know.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from takeup.cluster.engines.slurm.commands import Row
from takeup.cluster.engines.slurm.rows import NodeRow, Remarks, read_remarks
from takeup.cluster.engines.slurm.snapshot import QosClasses
from takeup.cluster.model import Grade, Kind, Workload


@dataclass(frozen=True, slots=True)
class _PastJob:
    """A job that ran."""

    kind: Kind
    pool: str
    organisation: str
    num_gpus: int
    num_nodes: int
    submit_s: float
    duration_s: float
    remarks: Remarks


def past_workload(
    rows: Iterable[Row], nodes: Mapping[str, NodeRow], classes: QosClasses, begin_s: float
) -> tuple[Workload, Counter[str]]:
    """The jobs of accounting rows since `begin_s`, which becomes time 0, and how many rows were left out, by reason."""
    skipped: Counter[str] = Counter()
    jobs: dict[tuple[object, object], _PastJob] = {}
    for row in rows:
        found = _past(row, nodes, classes, begin_s, skipped)
        if found is not None:
            key = (row.get("job_id"), found.pool)
            jobs[key] = _joined(jobs[key], found) if key in jobs else found
    return _workload(sorted(jobs.values(), key=lambda job: job.submit_s), nodes), skipped


def _past(
    row: Row, nodes: Mapping[str, NodeRow], classes: QosClasses, begin_s: float, skipped: Counter[str]
) -> _PastJob | None:
    times, grade = row.get("time") or {}, classes.grade(str(row.get("qos") or ""))
    gpus, model = _allocated(row)
    models = dict.fromkeys(node.model for node in nodes.values())
    pool = model or (next(iter(models)) if len(models) == 1 else "")
    duration_s = float(times.get("elapsed") or 0)
    num_nodes = int(row.get("allocation_nodes") or 0)
    reasons = {
        "not of our QOS": grade is None,
        "no GPUs, or of an unknown model": gpus == 0 or pool not in models,
        "never ran": duration_s <= 0,
        "uneven on its nodes": num_nodes < 1 or gpus % max(1, num_nodes) > 0,
    }
    for reason in (reason for reason, holds in reasons.items() if holds):
        skipped[reason] += 1
        return None
    comment = (row.get("comment") or {}).get("job") or ""
    kind = Kind.HIGH if grade == Grade.HIGH else Kind.SPOT
    submit_s = max(0.0, float(times.get("submission") or 0) - begin_s)
    remarks = read_remarks((str(comment),), np.inf)
    return _PastJob(kind, pool, str(row.get("account") or ""), gpus, num_nodes, submit_s, duration_s, remarks)


def _joined(first: _PastJob, second: _PastJob) -> _PastJob:
    """Two runs of a job as one."""
    early, late = sorted((first, second), key=lambda job: job.submit_s)
    return replace(early, duration_s=early.duration_s + late.duration_s, remarks=late.remarks)


def _allocated(row: Row) -> tuple[int, str]:
    """How many GPUs, and of which model if it says."""
    resources = (row.get("tres") or {}).get("allocated") or []
    gpus = {str(it.get("name")): int(it.get("count") or 0) for it in resources if it.get("type") == "gres"}
    models = [name.partition(":")[2] for name in gpus if name.startswith("gpu:")]
    return gpus.get("gpu", 0), models[0] if len(models) == 1 else ""


def _workload(jobs: list[_PastJob], nodes: Mapping[str, NodeRow]) -> Workload:
    pools = tuple(dict.fromkeys(node.model for node in nodes.values()))
    organisations = tuple(dict.fromkeys(job.organisation for job in jobs))

    def ints(values: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array(list(values), np.int64)

    def floats(values: Iterable[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return np.array(list(values), np.float64)

    return Workload(
        name="slurm",
        pools=pools,
        organisations=organisations,
        node_pool=ints(pools.index(node.model) for node in nodes.values()),
        node_gpus=ints(node.num_gpus for node in nodes.values()),
        job_kind=ints(job.kind for job in jobs),
        job_pool=ints(pools.index(job.pool) for job in jobs),
        job_organisation=ints(organisations.index(job.organisation) for job in jobs),
        job_gpus=floats(job.num_gpus / job.num_nodes for job in jobs),
        job_workers=ints(job.num_nodes for job in jobs),
        job_submit_s=floats(job.submit_s for job in jobs),
        job_duration_s=floats(job.duration_s for job in jobs),
        job_guarantee_h=floats(job.remarks.guarantee_h for job in jobs),
        job_checkpoint_s=floats(job.remarks.checkpoint_s for job in jobs),
    )
