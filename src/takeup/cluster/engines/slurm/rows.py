"""Jobs and nodes as Slurm prints them, read into what we need of them.

From 21.08 to 25.05 the fields kept their names; numbers became objects that may be unset, and a state became a list of
flags. Both forms are read.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice
from math import inf, isfinite
from typing import Any

import numpy as np

from takeup.cluster.engines.slurm.commands import Row
from takeup.cluster.model import Grade, Job, Kind, Workload

# What jobs declare in their comments: `takeup saved_s=1794755830 checkpoint_s=600 guarantee_h=2` ----------------------
#
# Anything before the word `takeup` is ignored. An invalid value is left out and counted; it never stops the controller,
# and never makes a job look cheaper to evict than it is.

MARK = re.compile(r"\btakeup\b:?", re.IGNORECASE)
SIGNAL = re.compile(r"(SIG)?[A-Z][A-Z0-9]{1,9}")
AHEAD_S = 60.0  # tolerated clock skew of nodes ahead of ours


@dataclass(frozen=True, slots=True)
class Remarks:
    """When work was last safe, how often it is saved, the promise asked for, the signal that asks to save now.

    A job that is parked is held by its owner and not by us; one that is gated is held until we release it. `only` are
    the nodes that its owner had named before we named ours.
    """

    saved_s: float = -inf
    checkpoint_s: float = inf
    guarantee_h: float = 1.0
    signal: str = ""
    is_parked: bool = False
    is_gated: bool = False
    only: tuple[str, ...] = ()
    num_malformed: int = 0


def read_remarks(comments: tuple[str, ...], now_s: float) -> Remarks:
    """What several comments of a job say together; of equal keys the last one counts."""
    values: dict[str, float] = {}
    signal, flags, only, num_malformed = "", set[str](), "", 0
    for key, text in (pair for comment in comments for pair in _pairs(comment)):
        if key == "notice" and SIGNAL.fullmatch(text):
            signal = text
        elif key == "only":
            only = text
        elif key in {"parked", "gate"} and not text:
            flags.add(key)
        elif (value := _value(key, text, now_s)) is not None:
            values[key] = value
        else:
            num_malformed += 1
    return Remarks(
        **values, signal=signal, is_parked="parked" in flags, is_gated="gate" in flags,
        only=tuple(expand_hosts(only)), num_malformed=num_malformed,
    )  # fmt: skip


def _pairs(comment: str) -> list[tuple[str, str]]:
    mark = MARK.search(comment)
    words = comment[mark.end() :].split() if mark else []
    return [(key, text) for key, _, text in (word.partition("=") for word in words)]


def _value(key: str, text: str, now_s: float) -> float | None:
    largest = {"saved_s": now_s + AHEAD_S, "checkpoint_s": inf, "guarantee_h": 24.0 * 365}
    try:
        value = float(text)
    except ValueError:
        return None
    is_sound = key in largest and isfinite(value) and 0 <= value <= largest[key]
    return value if is_sound and not (key == "checkpoint_s" and value == 0) else None


@dataclass(frozen=True, slots=True)
class QosClasses:
    """Slurm's names for the terms on which jobs run."""

    high: str = "hp"
    guaranteed: str = "spot"
    opportunistic: str = "spot_idle"

    def grade(self, qos: str) -> Grade | None:
        """The terms that a quality of service stands for; None if it is none of ours."""
        grades = {self.high: Grade.HIGH, self.guaranteed: Grade.GUARANTEED, self.opportunistic: Grade.OPPORTUNISTIC}
        return grades.get(qos)

    def qos(self, grade: Grade) -> str:
        """The quality of service for these terms."""
        return (self.high, self.guaranteed, self.opportunistic)[grade]


EXPLAINS = "why it runs:"  # how an AdminComment of ours begins, from the start of a job on
NEVER = "never"  # what a job depends on that cannot happen any more
MOST_TASKS = 1000  # of one array, waiting at a time
GPUS = re.compile(r"(?:gres[:/])?gpu(?::(?P<model>[^:,=()\d][^:,=()]*))?(?:[:=](?P<count>\d{1,9}))?(?:\(.*\))?")
NEEDED = re.compile(r"afterok:(\d+)")
DEPENDENCY = re.compile(r"[:?,](\d+)[^,?()]*\((unfulfilled|failed)\)")
MOST_HOSTS, MOST_BRACKETS = 10_000, 4  # names in a list, and brackets in a name
MOST_NUMBER = 2.0**63
RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?(?::([0-9]{1,9}))?")
BRACKETS = re.compile(r"([^,\[\]]*)\[([^\]]*)\]")
UNFIT = {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "NOT_RESPONDING", "MAINTENANCE", "POWERED_DOWN"}
UNFIT |= {"POWERING_DOWN", "POWER_DOWN", "REBOOT", "REBOOT_ISSUED", "UNKNOWN", "ERROR", "INVALID_REG", "RESERVED"}


class JobStatus(Enum):
    """Where a job is: waiting for us, waiting for Slurm after we released it, running, on its way out, or over."""

    HELD = "held"
    RELEASED = "released"
    RUNNING = "running"
    LEAVING = "leaving"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """How many GPUs, of which model (empty: any), and whether each worker wants a node for itself."""

    model: str
    gpus_per_worker: int
    num_workers: int
    is_apart: bool


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job; `gpus_on` has an entry for each of `nodes` while it runs."""

    id: str
    status: JobStatus
    qos: str
    account: str
    ask: GpuRequest | None
    nodes: tuple[str, ...]
    gpus_on: tuple[int, ...]
    required_nodes: tuple[str, ...]
    submit_s: float
    start_s: float
    eligible_s: float
    num_restarts: int
    comments: tuple[str, str]
    depends_on: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    features: str = ""
    excluded_nodes: tuple[str, ...] = ()
    is_exclusive: bool = False
    reservation: str = ""
    array_limit: int = 0
    is_held_by_admin: bool = False
    needs: tuple[str, ...] = ()  # jobs that must have succeeded
    has_failed: bool = False


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node with the model and number of its GPUs."""

    name: str
    model: str
    num_gpus: int
    is_fit: bool
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()


def read_node(row: Row) -> NodeRow | None:
    """A node, or None if it has no name, no GPUs, or GPUs of several models."""
    kinds = [_gpus(part) for part in _parts(str(row.get("gres") or ""))]
    found = [kind for kind in kinds if kind is not None and kind[1] > 0]
    if len(found) != 1 or "name" not in row:
        return None
    states = _words(row.get("state")) | _words(row.get("state_flags"))
    partitions, features = row.get("partitions") or (), str(row.get("active_features") or row.get("features") or "")
    return NodeRow(
        str(row["name"]), found[0][0] or "gpu", found[0][1], not states & UNFIT,
        tuple(map(str, partitions)), tuple(features.split(",")) if features else (),
    )  # fmt: skip


def read_job(row: Row) -> Iterator[JobRow]:
    """A job; an array that waits is one job for each of its tasks."""
    status = _status(row)
    nodes = tuple(expand_hosts(str(row.get("nodes") or "")))
    for name in _names(row):
        yield JobRow(
            id=name,
            status=status,
            qos=str(row.get("qos") or ""),
            account=str(row.get("account") or ""),
            ask=_ask(row),
            nodes=nodes,
            gpus_on=_gpus_on(row, nodes),
            required_nodes=tuple(expand_hosts(str(row.get("required_nodes") or ""))),
            submit_s=_number(row.get("submit_time")),
            start_s=_number(row.get("start_time")),
            eligible_s=_number(row.get("eligible_time")),
            num_restarts=int(_number(row.get("restart_cnt"))),
            comments=(str(row.get("admin_comment") or ""), str(row.get("comment") or "")),
            depends_on=tuple(_dependencies(row)),
            partitions=tuple(part for part in str(row.get("partition") or "").split(",") if part),
            features=str(row.get("features") or ""),
            excluded_nodes=tuple(expand_hosts(str(row.get("excluded_nodes") or ""))),
            is_exclusive=bool(_words(row.get("shared")) & {"NONE", "EXCLUSIVE"}) and row.get("shared") is not None,
            reservation=str(row.get("resv_name") or ""),
            array_limit=int(_number(row.get("array_max_tasks"))),
            is_held_by_admin=row.get("state_reason") == "JobHeldAdmin",
            needs=tuple(NEEDED.findall(str(row.get("dependency") or ""))),
            has_failed=status == JobStatus.OVER and "COMPLETED" not in _words(row.get("job_state")),
        )


def matches(features: tuple[str, ...], wanted: str) -> bool | None:
    """Whether a node has the features of a constraint such as `ib&a100|gh200`; None if it is of another form."""
    if re.search(r"[^\w.&|,-]", wanted):
        return None
    return any(set(re.split(r"[&,]", either)) <= set(features) for either in wanted.split("|"))


def expand_hosts(text: str) -> Iterator[str]:
    """The names in a list such as `gpu[01-03,7],login`; comments of users may hold one, so it has an end."""
    parts = re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", text)
    yield from islice(
        (name for part in parts if part.count("[") <= MOST_BRACKETS for name in _expand(part.strip())), MOST_HOSTS
    )


def _expand(part: str) -> Iterator[str]:
    match = BRACKETS.search(part) if "[" in part else None  # a search through a long name would be slow
    if match is None:
        yield part
        return
    before, after = part[: match.start(2) - 1], part[match.end() :]
    for number in _numbers(match[2]):
        yield from _expand(f"{before}{number}{after}")


def _numbers(text: str) -> Iterator[str]:
    for part in text.split(","):
        if match := RANGE.fullmatch(part):
            first, last, step = match[1], match[2] or match[1], int(match[3] or 1) or 1
            yield from (str(it).zfill(len(first)) for it in range(int(first), int(last) + 1, step))


def _number(value: object) -> float:
    """A number of Slurm's JSON; 0 where it is not set, infinite, or beyond what Slurm stores."""
    if isinstance(value, dict):
        value = value.get("number", 0) if value.get("set", True) and not value.get("infinite") else 0
    return float(value) if isinstance(value, int | float) and abs(value) < MOST_NUMBER else 0.0


def _words(value: object) -> set[str]:
    words = value if isinstance(value, list) else str(value or "").replace("+", " ").split()
    return {str(word).strip("*~#!%$@^-").upper() for word in words}


def _status(row: Row) -> JobStatus:
    states = _words(row.get("job_state"))
    if "COMPLETING" in states:
        return JobStatus.LEAVING
    if states & {"RUNNING", "SUSPENDED", "CONFIGURING", "STOPPED"}:
        return JobStatus.RUNNING
    if states & {"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"}:
        return JobStatus.HELD if _number(row.get("priority")) == 0 else JobStatus.RELEASED
    return JobStatus.OVER


def _names(row: Row) -> Iterator[str]:
    array, tasks = int(_number(row.get("array_job_id"))), str(row.get("array_task_string") or "")
    task = row.get("array_task_id")
    is_task = isinstance(task, int) or (isinstance(task, dict) and task.get("set"))
    if not array or not (tasks or is_task):
        if number := int(_number(row.get("job_id"))):
            yield str(number)
    elif tasks:
        yield from (f"{array}_{number}" for number in islice(_numbers(tasks.partition("%")[0]), MOST_TASKS))
    else:
        yield f"{array}_{int(_number(task))}"


def _dependencies(row: Row) -> Iterator[str]:
    for number, outcome in DEPENDENCY.findall(str(row.get("dependency") or "")):
        yield number if outcome == "unfulfilled" else NEVER


def _parts(text: str) -> list[str]:
    return [part for part in re.split(r",(?![^()]*\))", text) if part]


def _gpus(part: str) -> tuple[str, int] | None:
    match = GPUS.fullmatch(part)
    return None if match is None else (match["model"] or "", int(match["count"] or 1))


def _asked(row: Row, key: str) -> tuple[str, int] | None:
    found = [it for it in map(_gpus, _parts(str(row.get(key) or ""))) if it is not None and it[1] > 0]
    return found[0] if len(found) == 1 else None


def _ask(row: Row) -> GpuRequest | None:
    """GPUs per node, per task or per job, whichever was asked for."""
    num_nodes = max(1, int(_number(row.get("node_count"))))
    if (per_node := _asked(row, "tres_per_node")) is not None:
        return GpuRequest(*per_node, num_nodes, is_apart=True)
    if (per_task := _asked(row, "tres_per_task")) is not None:
        return GpuRequest(*per_task, max(1, int(_number(row.get("tasks")))), is_apart=False)
    per_job = _asked(row, "tres_per_job")
    if per_job is None or per_job[1] % num_nodes:
        return None
    return GpuRequest(per_job[0], per_job[1] // num_nodes, num_nodes, is_apart=True)


def _gpus_on(row: Row, nodes: tuple[str, ...]) -> tuple[int, ...]:
    detail = row.get("gres_detail") or []
    found = [_gpus(str(part)) for part in detail]
    if len(found) == len(nodes):
        return tuple(0 if it is None else it[1] for it in found)
    match = re.search(r"gres/gpu=(\d{1,9})", str(row.get("tres_alloc_str") or ""))
    total = int(match[1]) if match else 0
    return tuple(total // len(nodes) for _ in nodes) if nodes else ()


_PastJob = tuple[Job, float]  # a job that ran, and for how long


def past_workload(
    rows: Iterable[Row], nodes: Mapping[str, NodeRow], classes: QosClasses, begin_s: float
) -> tuple[Workload, Counter[str]]:
    """The jobs of accounting rows since `begin_s`, which becomes time 0, and how many rows were left out, by reason."""
    skipped: Counter[str] = Counter()
    jobs: dict[tuple[int, str], _PastJob] = {}
    for row in rows:
        try:
            found = _past(row, nodes, classes, begin_s, skipped)
            key = (int(row["job_id"]), found[0].pool if found else "")
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            skipped["malformed"] += 1
            continue
        if found is not None:
            jobs[key] = _joined(jobs[key], found) if key in jobs else found
    return _workload(sorted(jobs.values(), key=lambda it: it[0].submit_s), nodes), skipped


def _past(
    row: Row, nodes: Mapping[str, NodeRow], classes: QosClasses, begin_s: float, skipped: Counter[str]
) -> _PastJob | None:
    times, grade = row.get("time") or {}, classes.grade(str(row.get("qos") or ""))
    gpus, model = _allocated(row)
    models = dict.fromkeys(node.model for node in nodes.values())
    pool = model or (next(iter(models)) if len(models) == 1 else "")
    before_s = begin_s - float(times["start"]) if times.get("start") else 0.0
    duration_s = float(times.get("elapsed") or 0) - max(0.0, before_s)  # what lies inside the window
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
    remarks = read_remarks((str(comment),), np.inf)
    job = Job(
        str(row["job_id"]), Kind.HIGH if grade == Grade.HIGH else Kind.SPOT, str(row.get("account") or ""), pool,
        gpus // num_nodes, num_nodes, max(0.0, float(times.get("submission") or 0) - begin_s),
        remarks.guarantee_h, remarks.checkpoint_s,
    )  # fmt: skip
    return job, duration_s


def _joined(first: _PastJob, second: _PastJob) -> _PastJob:
    """Two runs of a job as one."""
    (early, early_s), (late, late_s) = sorted((first, second), key=lambda it: it[0].submit_s)
    return replace(early, guarantee_h=late.guarantee_h, checkpoint_s=late.checkpoint_s), early_s + late_s


def _allocated(row: Row) -> tuple[int, str]:
    """How many GPUs, and of which model if it says."""
    resources = (row.get("tres") or {}).get("allocated") or []
    gpus = {str(it.get("name")): int(it.get("count") or 0) for it in resources if it.get("type") == "gres"}
    models = [name.partition(":")[2] for name in gpus if name.startswith("gpu:")]
    return gpus.get("gpu", 0), models[0] if len(models) == 1 else ""


def _workload(past: list[_PastJob], nodes: Mapping[str, NodeRow]) -> Workload:
    jobs, durations_s = [job for job, _ in past], [duration_s for _, duration_s in past]
    pools = tuple(dict.fromkeys(node.model for node in nodes.values()))
    organisations = tuple(dict.fromkeys(job.organisation for job in jobs))
    whole = {
        "node_pool": [pools.index(node.model) for node in nodes.values()],
        "node_gpus": [node.num_gpus for node in nodes.values()],
        "job_kind": [job.kind for job in jobs],
        "job_pool": [pools.index(job.pool) for job in jobs],
        "job_organisation": [organisations.index(job.organisation) for job in jobs],
        "job_workers": [job.num_workers for job in jobs],
    }
    real = {name: [getattr(job, name) for job in jobs] for name in ("submit_s", "guarantee_h", "checkpoint_s")}
    real |= {"gpus": [job.gpus_per_worker for job in jobs], "duration_s": durations_s}
    columns: dict[str, Any] = {name: np.array(values, np.int64) for name, values in whole.items()}
    columns |= {f"job_{name}": np.array(values, np.float64) for name, values in real.items()}
    return Workload("slurm", pools, organisations, **columns)
