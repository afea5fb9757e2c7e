"""A site's own records as a workload: sacct (text or JSON), kubectl get pods -o json, or any table of jobs.

Which jobs are spot is read from a column, never drawn: QOS, partition, priority class, or a column such as
`best_effort`. Where no value is known to mean spot the error lists them, and `--map spot=COLUMN=VALUE` names one.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil, isfinite, nan
from pathlib import Path
from typing import Any

import numpy as np

from takeup.cluster.traces.workload import (
    LEAST_SHARE,
    NODE_GPUS,
    JobColumns,
    LoadedTrace,
    Nodes,
    TraceOptions,
    TraceRows,
    labelled,
    load,
    moment_of,
    most_usual_nodes,
    split_gangs,
)
from takeup.core.arrays import Floats
from takeup.core.limits import LONGEST_S, MOST_COUNT, read_json, reading, text_lines
from takeup.core.trace import TraceColumn, column_names, read_table
from takeup.errors import BadInput, BadTrace

SPOT_VALUES = re.compile(r"spot|preempt|scaveng|best.?effort|^be$|^best$|standby|opportunis|backfill|requeue|^low|free")
YES = {"1", "true", "yes", "y"}
LABELS = ("spot", "is_spot", "best_effort", "preemptible", "job_type", "class", "priority_class", "qos", "priority")
NAMES = {
    "id": ("jobid", "job_id", "id", "job_name", "name"),
    "submit": ("submit", "submit_time", "submitted_time", "submission_time", "arrival_time", "timestamp", "submit_s"),
    "start": ("start", "start_time", "started_time"),
    "end": ("end", "end_time", "finished_time", "finish_time"),
    "duration": ("elapsedraw", "duration", "duration_s", "run_time", "runtime"),
    "gpus": ("alloctres", "reqtres", "num_gpus", "num_gpu", "gpu_num", "gpus", "gpu_count", "gpu_request"),
    "workers": ("worker_num", "num_workers", "workers"),
    "pool": ("gpu_model", "gpu_type", "pool", "model"),
    "organisation": ("account", "organization", "vc", "virtual_cluster", "user", "tenant"),
    "partition": ("partition",),
}
GANGS = (
    "pod-group.scheduling.sigs.k8s.io/name",
    "training.kubeflow.org/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "batch.kubernetes.io/job-name",
)
EXPECTED = "give the output of 'sacct -P', 'sacct --json' or 'kubectl get pods -o json', or a table of jobs"
EXPECTED_NODES = "give the output of 'sinfo --json' or 'kubectl get nodes -o json', or a size such as 80x8"


@dataclass(slots=True)
class JobRecord:
    """One job as a site remembers it; moments in seconds, `labels` what may say that it is spot."""

    id: str
    submit_s: float
    start_s: float
    end_s: float
    gpus: float
    workers: int = 0
    pool: str = "gpu"
    organisation: str = "everyone"
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SiteRecords:
    """A workload, what its jobs really had: GPU-seconds allocated in each hour, and the policy that comes closest."""

    loaded: LoadedTrace
    allocated_gpu_s: Floats
    own_policy: str
    has_starts: bool


def read_records(
    path: Path, mapped: Mapping[str, str], nodes: Nodes | None, options: TraceOptions, is_drawn: bool = False
) -> SiteRecords:
    """All jobs with GPUs that ran; `mapped` names columns, `is_drawn` asks for labels by `options.spot_share`."""
    with _records_of(path, EXPECTED):
        found, own_policy = _records(path, mapped, options)
    skipped = Counter[str]()
    jobs = list(_usable(_merged(found), skipped))
    if not jobs:
        raise BadTrace(path, f"has no job that ran on GPUs ({dict(skipped)}); export more days or map the columns")
    columns, note = _columns(path, jobs, mapped, options, is_drawn)
    known, how = (nodes, ()) if nodes else _fleet(path, jobs, columns)
    if nodes and len(nodes) == 1:
        columns.pool[:] = next(iter(nodes))
    rows = TraceRows(path, {"id": np.array([job.id for job in jobs], np.object_)}, np.ones(len(jobs), np.bool_))
    loaded = load(path.name.partition(".")[0], rows, columns, known, options, (note, *how))
    rows.skipped.update(skipped)
    return SiteRecords(
        LoadedTrace(loaded.workload, len(found), {**loaded.skipped, **skipped}, loaded.num_too_large, loaded.notes),
        _allocated(jobs),
        own_policy,
        _has_starts(jobs),
    )


def nodes_from(text: str) -> Nodes:
    """Nodes by pool from `80x8`, `a100=80x8,h100=10x8`, or a file of `sinfo --json` or `kubectl get nodes -o json`."""
    path = Path(text)
    if path.exists():
        return _nodes_of_file(path)
    nodes: dict[str, tuple[int, ...]] = {}
    for part in text.split(","):
        match = re.fullmatch(r"(?:(.+)=)?(\d+)x(\d+)", part.strip())
        if match is None or not all(0 < int(match[place][:9]) <= MOST_COUNT for place in (2, 3)):
            raise BadInput(f"{part!r} is no list of nodes; write 80x8, a100=80x8, or name a file of 'sinfo --json'")
        nodes[match[1] or "gpu"] = (int(match[3]),) * int(match[2])
    return nodes


def _nodes_of_file(path: Path) -> Nodes:
    nodes: dict[str, list[int]] = {}
    with _records_of(path, EXPECTED_NODES):
        for model, count in _node_gpus(read_json(path, EXPECTED_NODES)):
            if count > MOST_COUNT:
                raise BadTrace(path, f"has a node with {count} GPUs, more than {MOST_COUNT}; {EXPECTED_NODES}")
            nodes.setdefault(model, []).extend([count] * (count > 0))
    if not any(nodes.values()):
        raise BadTrace(path, f"lists no node with GPUs; {EXPECTED_NODES}")
    return {model: tuple(sizes) for model, sizes in nodes.items()}


def _node_gpus(document: Any) -> Iterator[tuple[str, int]]:
    """Model and number of GPUs of each node."""
    for node in document.get("nodes", document.get("sinfo", ())):
        gres = node.get("gres", "")
        for model, count in re.findall(r"gpu:(?:([\w.-]+):)?(\d+)", gres if isinstance(gres, str) else gres["total"]):
            for _ in node.get("nodes", {}).get("nodes", [0]):
                yield model or "gpu", int(count)
    for item in document.get("items", ()):
        count = int(item["status"].get("capacity", {}).get("nvidia.com/gpu", 0))
        yield item["metadata"].get("labels", {}).get("nvidia.com/gpu.product", "gpu"), count


@contextmanager
def _records_of(path: Path, expected: str) -> Iterator[None]:
    """What damage raises, and what a record of another shape raises, as an error about the file."""
    with reading(path, expected):
        try:
            yield
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise BadTrace(
                path, f"holds a record of another shape ({type(error).__name__}: {error}); {expected}"
            ) from error


def _records(path: Path, mapped: Mapping[str, str], options: TraceOptions) -> tuple[list[JobRecord], str]:
    with path.open("rb") as file:
        begin = file.read(64).lstrip()
    if begin.startswith(b"{"):
        document = read_json(path, EXPECTED)
        if "jobs" in document:
            return list(_sacct_json(document["jobs"])), "slurm"
        if "items" in document:
            return list(_pods(document["items"])), "kube"
        raise BadTrace(
            path, "is JSON with neither 'jobs' nor 'items'; give 'sacct --json' or 'kubectl get pods -o json'"
        )
    if begin.lower().startswith(b"jobid|") or b"|" in begin.partition(b"\n")[0]:
        with path.open(encoding="utf-8", errors="replace") as file:
            lines = (line.rstrip("\n").split("|") for line in text_lines(path, file))
            names = [name.lower() for name in next(lines)]
            rows = (dict(zip(names, cells, strict=False)) for cells in lines)
            return list(_table(path, rows, names, mapped, options)), "slurm"
    names = column_names(path)
    texts = read_table(path, [TraceColumn(name, "text", required=False) for name in names])
    rows = (
        dict(zip(names, map(str, row), strict=True)) for row in zip(*(texts[n].tolist() for n in names), strict=True)
    )
    return list(_table(path, rows, names, mapped, options)), "fifo"


def _table(
    path: Path, rows: Iterable[dict[str, str]], names: list[str], mapped: Mapping[str, str], options: TraceOptions
) -> Iterator[JobRecord]:
    by_name = {name.lower(): name for name in reversed(names)}
    column = {
        what: mapped.get(what) or next((by_name[name] for name in known if name in by_name), "")
        for what, known in NAMES.items()
    }
    absent = [name for name in (*mapped.values(),) if name.partition("=")[0] not in names]
    if absent:
        raise BadTrace(path, f"has no column {absent[0].partition('=')[0]!r}; its columns are {', '.join(names)}")
    for what in ("submit", "gpus"):
        if not column[what]:
            raise BadTrace(path, f"has no column for {what}; name it with '--map {what}=COLUMN' ({', '.join(names)})")
    if not (column["duration"] or column["end"]):
        raise BadTrace(path, f"has neither a duration nor an end; '--map duration=COLUMN' ({', '.join(names)})")
    for number, row in enumerate(rows):
        yield _row(number, {what: row.get(name, "") for what, name in column.items()}, row, options.time_unit_s)


def _row(number: int, cell: dict[str, str], row: dict[str, str], unit_s: float) -> JobRecord:
    submit_s, start_s, end_s = (unit_s * moment_of(cell[name]) for name in ("submit", "start", "end"))
    lasted_s = unit_s * moment_of(cell["duration"]) if cell["duration"] else nan
    if not isfinite(start_s):
        start_s = submit_s if cell["start"] == "" and isfinite(lasted_s) else nan
    gpus, pool = _tres(cell["gpus"]) if "=" in cell["gpus"] else (moment_of(cell["gpus"]), "")
    workers = int(moment_of(cell["workers"])) if cell["workers"] else 0
    labels = {name.lower(): text for name, text in row.items()}
    return JobRecord(
        cell["id"] or str(number), submit_s, start_s, start_s + lasted_s if isfinite(lasted_s) else end_s,
        gpus * max(1, workers), workers, cell["pool"] or pool or "gpu", cell["organisation"] or "everyone", labels,
    )  # fmt: skip


def _tres(text: str) -> tuple[float, str]:
    """GPUs and model of `billing=8,gres/gpu=8,gres/gpu:a100=8`."""
    counts = re.findall(r"gres/gpu(?::([\w.-]+))?=(\d+)", text)
    typed = [(int(count), model) for model, count in counts if model]
    return max(typed) if typed else (max((float(count) for _, count in counts), default=0.0), "")


def _sacct_json(jobs: Iterable[dict[str, Any]]) -> Iterator[JobRecord]:
    for job in jobs:
        time, tres = job.get("time", {}), job.get("tres", {})
        entries = tres.get("allocated") or tres.get("requested") or []
        names = {f"gres/{it['name']}": int(it["count"]) for it in entries if it.get("type") == "gres"}
        gpus, model = _tres(",".join(f"{name}={count}" for name, count in names.items()))
        labels = {name: str(job.get(name, "")) for name in ("qos", "partition", "account")}
        yield JobRecord(
            str(job.get("job_id")), _second(time.get("submission")), _second(time.get("start")),
            _second(time.get("end")), gpus, 0, model or "gpu", labels["account"] or "everyone", labels,
        )  # fmt: skip


def _second(value: Any) -> float:
    """A moment as Slurm writes it, a number or `{"set": true, "number": N}`; 0 stands for none."""
    return float((value.get("number") if isinstance(value, dict) else value) or nan)


def _pods(items: Iterable[dict[str, Any]]) -> Iterator[JobRecord]:
    for pod in items:
        meta, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
        limits = [it.get("resources", {}) for it in spec.get("containers", ())]
        gpus = sum(float({**it.get("limits", {}), **it.get("requests", {})}.get("nvidia.com/gpu", 0)) for it in limits)
        ends = [
            it.get("state", {}).get("terminated", {}).get("finishedAt") for it in status.get("containerStatuses", ())
        ]
        labels = meta.get("labels", {})
        gang = next((labels[name] for name in GANGS if name in labels), "")
        yield JobRecord(
            f"{meta.get('namespace', '')}/{gang or meta['name']}", moment_of(meta["creationTimestamp"]),
            moment_of(status.get("startTime", "")), max((moment_of(end) for end in ends if end), default=nan), gpus, 1,
            spec.get("nodeSelector", {}).get("nvidia.com/gpu.product", "gpu"), meta.get("namespace", "everyone"),
            {"priority_class": spec.get("priorityClassName", ""), **labels},
        )  # fmt: skip


def _merged(records: Iterable[JobRecord]) -> list[JobRecord]:
    """One record for each job: pods of a gang are its workers, and runs of a requeued job follow each other."""
    jobs: dict[str, JobRecord] = {}
    for it in records:
        if "." in it.id and "/" not in it.id:
            continue  # a step of a Slurm job
        before = jobs.setdefault(it.id, it)
        if before is it:
            continue
        if it.workers == 1 and before.workers >= 1 and "/" in it.id:
            before.workers, before.gpus = before.workers + 1, before.gpus + it.gpus
        elif isfinite(it.end_s) and isfinite(before.end_s):
            before.end_s += it.end_s - it.start_s
    return list(jobs.values())


def _usable(records: list[JobRecord], skipped: Counter[str]) -> Iterator[JobRecord]:
    known = [it.end_s for it in records if isfinite(it.end_s)] + [it.start_s for it in records if isfinite(it.start_s)]
    last_s = max(known, default=0.0)
    usual_s = float(np.median([it.submit_s for it in records if isfinite(it.submit_s)] or [0.0]))
    for it in records:
        if not it.gpus > 0:
            skipped["asks for no GPU"] += 1
        elif max(it.gpus, it.workers) > MOST_COUNT or it.gpus / max(1, it.workers) < LEAST_SHARE:
            skipped["asks for a number of GPUs that no job has"] += 1
        elif not (isfinite(it.submit_s) and isfinite(it.start_s)):
            skipped["never started"] += 1
        else:
            it.end_s = it.end_s if isfinite(it.end_s) else last_s  # it is still running
            if max(abs(moment_s - usual_s) for moment_s in (it.submit_s, it.start_s, it.end_s)) > LONGEST_S:
                skipped["is a century from the others"] += 1
            elif it.end_s > it.start_s:
                yield it
            else:
                skipped["ended when it began"] += 1


def _columns(
    path: Path, jobs: list[JobRecord], mapped: Mapping[str, str], options: TraceOptions, is_drawn: bool
) -> tuple[JobColumns, str]:
    organisation = np.array([job.organisation for job in jobs], np.object_)
    is_spot, note = labelled(organisation, options) if is_drawn else _labels(path, jobs, mapped)
    submit_s = np.array([job.submit_s for job in jobs])
    total, given = np.array([job.gpus for job in jobs]), np.array([job.workers for job in jobs], np.int64)
    gpus, workers = split_gangs(total)
    gpus, workers = np.where(given > 0, total / np.maximum(1, given), gpus), np.where(given > 0, given, workers)
    return JobColumns(
        is_spot=is_spot,
        pool=np.array([job.pool for job in jobs], np.object_),
        organisation=organisation,
        gpus=gpus,
        workers=workers,
        submit_s=submit_s - submit_s.min(),
        duration_s=np.array([job.end_s - job.start_s for job in jobs]),
    ), note


def _labels(path: Path, jobs: list[JobRecord], mapped: Mapping[str, str]) -> tuple[Any, str]:
    """Which jobs are spot, by the column that was named or the first one whose values are known."""
    name, _, values = mapped.get("spot", "").partition("=")
    seen = {key for job in jobs for key in job.labels}
    columns = [name.lower()] if name else [it for it in (*LABELS, "partition") if it in seen]
    for column in columns:
        wanted = set(values.split("|")) if values else None
        texts = [job.labels.get(column, "") for job in jobs]
        yes = np.array([_is_spot(column, text, wanted) for text in texts])
        if yes.any() and not yes.all():
            return yes, f"{int(yes.sum())} of {len(yes)} jobs are spot by the column {column!r}"
    found = "; ".join(f"{it}: {_most_common(jobs, it)}" for it in columns) or "no column for it"
    raise BadTrace(
        path, f"does not say which jobs are spot ({found}); name them with '--map spot=COLUMN=VALUE', or draw a share "
        "of all jobs with '--spot-share 0.2'",
    )  # fmt: skip


def _most_common(jobs: list[JobRecord], column: str) -> str:
    counts = Counter(job.labels.get(column, "") for job in jobs).most_common(5)
    return ", ".join(f"{value!r} {count} times" for value, count in counts)


def _is_spot(column: str, text: str, wanted: set[str] | None) -> bool:
    if wanted is not None:
        return text in wanted
    is_flag = column in {"spot", "is_spot", "best_effort", "preemptible"} and text.lower() in YES
    return is_flag or SPOT_VALUES.search(text.lower()) is not None


def _fleet(path: Path, jobs: list[JobRecord], columns: JobColumns) -> tuple[Nodes, tuple[str, ...]]:
    """As many nodes as were in use at once; without moments of start, as usual demand needs."""
    if not _has_starts(jobs):
        nodes, note = most_usual_nodes(columns)
        return nodes, (note,)
    found: dict[str, tuple[int, ...]] = {}
    for pool in sorted({job.pool for job in jobs}):
        mine = [job for job in jobs if job.pool == pool]
        changes = sorted([(job.end_s, -job.gpus) for job in mine] + [(job.start_s, job.gpus) for job in mine])
        peak = float(np.cumsum([gpus for _, gpus in changes]).max())
        if peak > MOST_COUNT:
            raise BadTrace(path, f"has {peak:.3g} GPUs at once in pool {pool!r}, more than {MOST_COUNT}; correct it")
        found[pool] = (NODE_GPUS,) * max(1, ceil(peak / NODE_GPUS))
    count = sum(map(len, found.values()))
    return found, (
        f"no list of nodes: {count} nodes of {NODE_GPUS} GPUs hold what ran at once; give them with '--nodes'",
    )


def _has_starts(jobs: list[JobRecord]) -> bool:
    """Whether the records say when jobs started; otherwise a start is the submission."""
    return any(job.start_s != job.submit_s for job in jobs)


def _allocated(jobs: list[JobRecord]) -> Floats:
    """GPU-seconds that jobs really held in each hour since the first submission."""
    first_s = min(job.submit_s for job in jobs)
    hours = np.zeros(int(max(first_s, *(job.end_s for job in jobs)) - first_s) // 3600 + 1)
    for job in jobs:
        begin, end = max(0.0, job.start_s - first_s), max(0.0, job.end_s - first_s)
        held = slice(int(begin // 3600), int(end // 3600) + 1)
        starts_s = 3600.0 * np.arange(held.start, held.stop)
        held_s = np.minimum(end, starts_s + 3600.0) - np.maximum(begin, starts_s)
        hours[held] += np.maximum(0.0, held_s) * job.gpus
    return hours
