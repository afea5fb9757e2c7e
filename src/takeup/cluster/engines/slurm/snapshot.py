"""Snapshot of a Slurm cluster: what a scheduler may know now, and what is needed to carry its decisions out.

A job that we released counts as running on the nodes it was given, though Slurm may take a second to start it. GPUs of
jobs that are not ours, that have an unknown layout or that are under notice are subtracted from their nodes: no plan
uses them, and no job is evicted for them.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from takeup.cluster.engines.slurm.journal import SlurmLedger
from takeup.cluster.engines.slurm.rows import (
    EXPLAINS,
    GpuRequest,
    JobRow,
    JobStatus,
    NodeRow,
    QosClasses,
    Remarks,
    matches,
    read_remarks,
)
from takeup.cluster.model import Grade, Job, Kind, Node, Run, State, Waiting


@dataclass(slots=True)
class ClusterSnapshot:
    """A state, the rows behind its jobs, and what was left out of it, by reason."""

    state: State
    rows: Mapping[str, JobRow]
    remarks: Mapping[str, Remarks]
    skipped: Counter[str]
    guaranteed_gpus: Counter[str] = field(default_factory=Counter)  # under a promise, by pool; grows with each start
    outlived_gpus: Counter[str] = field(default_factory=Counter)  # of runs whose promised hours are over

    def usable_nodes(self, job_id: str) -> frozenset[str]:
        """The nodes that a waiting job may be started on."""
        job = next((wait.job for wait in self.state.waiting if wait.job.id == job_id), None)
        every = frozenset(node.name for node in self.state.nodes)
        return every if job is None or job.only_nodes is None else every & job.only_nodes


@dataclass(slots=True)
class _SnapshotBuilder:
    """Builder of a `ClusterSnapshot`."""

    nodes: Mapping[str, NodeRow]
    classes: QosClasses
    now_s: float
    first_submit_s: Mapping[str, float]
    resting: Collection[str]
    largest: Mapping[str, int]  # GPUs of the largest node of each model
    ledger: SlurmLedger
    num_tasks: Counter[str]  # tasks of each array that are under way
    runs: list[Run] = field(default_factory=list)
    waiting: list[Waiting] = field(default_factory=list)
    taken: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    remarks: dict[str, Remarks] = field(default_factory=dict)
    masks: dict[object, frozenset[str] | None] = field(default_factory=dict)

    def add(self, row: JobRow, is_leaving: bool) -> None:
        """Add a job as running or waiting; a job under notice keeps its GPUs until it has ended."""
        grade, pool, places = self.classes.grade(row.qos), self._pool(row), _places(row)
        is_ours = grade is not None and row.ask is not None and pool is not None
        is_placed = row.status == JobStatus.RUNNING or (row.status == JobStatus.RELEASED and bool(row.required_nodes))
        if row.status == JobStatus.HELD:
            if grade is not None:
                self._add_waiting(row, pool)
        elif is_placed and is_ours and not is_leaving and places is not None and self._knows(places):
            assert grade is not None
            self._add_run(row, self._job(row, pool or "", spread=False), places, grade)
        elif row.status == JobStatus.RUNNING:
            self.taken.update(dict(zip(row.nodes, row.gpus_on, strict=False)))
            if not is_leaving:
                self.skipped["running jobs that are left alone"] += 1

    def _knows(self, places: tuple[str, ...]) -> bool:
        return all(name in self.nodes for name in places)

    def _add_run(self, row: JobRow, job: Job, places: tuple[str, ...], grade: Grade) -> None:
        start_s = row.start_s if row.status == JobStatus.RUNNING else self.now_s
        start_s = min(start_s, self.now_s)
        saved_s = min(max(start_s, self._remarks(row).saved_s), self.now_s)
        self.runs.append(Run(job, places, start_s, grade, saved_s, row.num_restarts))

    def _add_waiting(self, row: JobRow, pool: str | None) -> None:
        reason = self._why_left_alone(row, pool)
        if reason:
            self.skipped[reason] += 1
            return
        assert pool is not None
        self.num_tasks[array_of(row)] += 1
        self.waiting.append(Waiting(self._job(row, pool, spread=True), row.submit_s, row.num_restarts))

    def _why_left_alone(self, row: JobRow, pool: str | None) -> str:
        """Why a held job is not ours to start now; empty if it is."""
        is_early = row.num_restarts == 0 and row.eligible_s > self.now_s
        reasons = {
            "waiting jobs that ask for no GPUs, or for none that we know": row.ask is None or pool is None,
            "jobs that an operator or their owner holds": not self._is_ours(row),
            "waiting jobs that are not to start yet": bool(row.depends_on) or is_early or self._remarks(row).is_parked,
            "waiting tasks beyond the limit of their array": 0 < row.array_limit <= self.num_tasks[array_of(row)],
            "waiting jobs that ask for a reservation": bool(row.reservation),
            "waiting jobs that Slurm would not start where they were put": row.id in self.resting,
        }
        found = next((reason for reason, holds in reasons.items() if holds), "")
        return found or ("" if self._can_place(row) else "waiting jobs whose nodes or features cannot be had")

    def _is_ours(self, row: JobRow) -> bool:
        """Whether we or the gate hold a job, and nothing else does: an operator's hold is never released."""
        is_new = row.num_restarts == 0 and not row.comments[0].startswith(EXPLAINS)
        is_gated = is_new and self._remarks(row).is_gated
        return not row.is_held_by_admin and (is_gated or self.ledger.is_held(row))

    def _can_place(self, row: JobRow) -> bool:
        names, mask = named_nodes(row, self._remarks(row)), self._only_nodes(row)
        is_partial = bool(names) and row.ask is not None and row.ask.is_apart and len(names) < row.ask.num_workers
        return not is_partial and (mask is None or bool(mask))

    def _only_nodes(self, row: JobRow) -> frozenset[str] | None:
        """The nodes that partition, constraint and node lists leave; None for all."""
        names = named_nodes(row, self._remarks(row))
        key = (row.partitions, row.features, row.excluded_nodes, names)
        if key not in self.masks:
            fits = frozenset(node.name for node in self.nodes.values() if _fits(node, row, names))
            self.masks[key] = None if len(fits) == len(self.nodes) else fits
        return self.masks[key]

    def _job(self, row: JobRow, pool: str, *, spread: bool) -> Job:
        assert row.ask is not None
        remarks = self._remarks(row)
        grade = self.classes.grade(row.qos)
        return Job(
            id=row.id,
            kind=Kind.HIGH if grade == Grade.HIGH else Kind.SPOT,
            organisation=row.account,
            pool=pool,
            gpus_per_worker=self._spread(row.ask, pool) if spread else row.ask.gpus_per_worker,
            num_workers=row.ask.num_workers,
            submit_s=min(row.submit_s, self.first_submit_s.get(row.id, row.submit_s)),
            guarantee_h=remarks.guarantee_h,
            checkpoint_s=remarks.checkpoint_s,
            only_nodes=self._only_nodes(row) if spread else None,
        )

    def _spread(self, ask: GpuRequest, pool: str) -> int:
        """GPUs per worker, raised so that no two workers fit on a node if each wants a node for itself."""
        if not ask.is_apart or ask.num_workers == 1:
            return ask.gpus_per_worker
        return max(ask.gpus_per_worker, self.largest[pool] // 2 + 1)

    def _pool(self, row: JobRow) -> str | None:
        """The model of GPU that a job asks for, had before, or cannot avoid."""
        if row.ask is None:
            return None
        if row.ask.model:
            return row.ask.model if row.ask.model in self.largest else None
        used = {self.nodes[name].model for name in (*row.nodes, *row.required_nodes) if name in self.nodes}
        candidates = used or set(self.largest)
        return next(iter(candidates)) if len(candidates) == 1 else None

    def _remarks(self, row: JobRow) -> Remarks:
        if row.id not in self.remarks:
            self.remarks[row.id] = read_remarks(row.comments, self.now_s)
        return self.remarks[row.id]


def build_state(
    jobs: Iterable[JobRow],
    nodes: Mapping[str, NodeRow],
    ledger: SlurmLedger,
    classes: QosClasses,
    now_s: float,
    first_submit_s: Mapping[str, float],
    resting: Collection[str] = (),
) -> ClusterSnapshot:
    """The cluster at this moment, as far as we know it."""
    largest: dict[str, int] = {}
    for node in nodes.values():
        largest[node.model] = max(node.num_gpus, largest.get(node.model, 0))
    rows = {row.id: _whole(row, largest) for row in jobs}
    under_way = Counter(array_of(row) for row in rows.values() if row.status != JobStatus.HELD)
    drawing = _SnapshotBuilder(nodes, classes, now_s, first_submit_s, resting, largest, ledger, under_way)
    for row in rows.values():
        drawing.add(row, row.id in ledger.notices)
    num_malformed = sum(remarks.num_malformed for remarks in drawing.remarks.values())
    if num_malformed:
        drawing.skipped["malformed remarks in job comments"] = num_malformed
    state = State(
        now_s=now_s,
        nodes=tuple(
            Node(node.name, node.model, max(0, node.num_gpus - drawing.taken[node.name]), node.is_fit)
            for node in nodes.values()
        ),
        runs=tuple(drawing.runs),
        waiting=tuple(drawing.waiting),
        quotas=dict(ledger.quotas),
        evictions=tuple(ledger.evictions),
        nominations=_reserved(drawing, rows, ledger),
    )
    return ClusterSnapshot(state, rows, drawing.remarks, drawing.skipped, *_guaranteed(state))


def array_of(row: JobRow) -> str:
    """The number of the job that a task belongs to."""
    return row.id.partition("_")[0]


def named_nodes(row: JobRow, remarks: Remarks) -> tuple[str, ...]:
    """The nodes that the owner of a job named; from its first start on, ours stand in their place."""
    return remarks.only if row.comments[0].startswith(EXPLAINS) or row.num_restarts else row.required_nodes


def _fits(node: NodeRow, row: JobRow, names: tuple[str, ...]) -> bool:
    """Whether a job may run on a node, by its partition, constraint and node lists."""
    in_partition = not (row.partitions and node.partitions) or bool(set(row.partitions) & set(node.partitions))
    is_named = node.name in names if names else node.name not in row.excluded_nodes
    return in_partition and is_named and (not row.features or matches(node.features, row.features) is True)


def _whole(row: JobRow, largest: Mapping[str, int]) -> JobRow:
    """A job that wants its nodes for itself asks for all of their GPUs."""
    if not row.is_exclusive or row.ask is None or not largest:
        return row
    gpus = largest.get(row.ask.model, max(largest.values()))
    return replace(row, ask=replace(row.ask, gpus_per_worker=gpus, is_apart=True))


def _places(row: JobRow) -> tuple[str, ...] | None:
    """A node for each worker, or None if the GPUs do not add up."""
    ask = row.ask
    if ask is None:
        return None
    if row.status == JobStatus.RELEASED:
        return _round_robin(row.required_nodes, ask)
    seats = [(name, gpus // ask.gpus_per_worker) for name, gpus in zip(row.nodes, row.gpus_on, strict=False)]
    places = tuple(name for name, count in seats for _ in range(count))
    return places if len(places) == ask.num_workers and sum(row.gpus_on) == len(places) * ask.gpus_per_worker else None


def _round_robin(names: tuple[str, ...], ask: GpuRequest) -> tuple[str, ...] | None:
    """Workers assigned round-robin to the named nodes; Slurm has not reported its own layout yet."""
    if not names or len(names) > ask.num_workers:
        return None
    return tuple(names[number % len(names)] for number in range(ask.num_workers))


def _guaranteed(state: State) -> tuple[Counter[str], Counter[str]]:
    """GPUs by pool of guaranteed runs: while their promise lasts, and after it."""
    held, outlived = Counter[str](), Counter[str]()
    for run in state.runs:
        if run.grade == Grade.GUARANTEED:
            (held if run.is_promised(state.now_s) else outlived)[run.job.pool] += int(run.job.num_gpus)
    return held, outlived


def _reserved(drawing: _SnapshotBuilder, rows: Mapping[str, JobRow], ledger: SlurmLedger) -> dict[str, tuple[str, ...]]:
    """Nodes reserved for jobs whose victims are still running under notice."""
    leaving: dict[str, Counter[str]] = {}
    for notice in ledger.notices.values():
        row = rows.get(notice.job_id)
        if row is not None:
            seats = dict(zip(row.nodes, row.gpus_on, strict=False))
            leaving.setdefault(notice.for_job, Counter()).update(seats)
    waiting = {wait.job.id: wait.job for wait in drawing.waiting}
    wanted = [(waiting[name], gpus) for name, gpus in leaving.items() if name in waiting]
    kept = {job.id: _reserved_nodes(job, _free(drawing, job.pool), gpus) for job, gpus in wanted}
    return {name: seats for name, seats in kept.items() if len(seats) == waiting[name].num_workers}


def _reserved_nodes(job: Job, free: Counter[str], leaving: Counter[str]) -> tuple[str, ...]:
    """A node for each worker as far as there are any, those of the victims first."""
    gpus = int(job.gpus_per_worker)
    names = sorted(free, key=lambda name: (-leaving[name], name))
    seats = [name for name in names for _ in range(max(0, free[name] + leaving[name]) // gpus)]
    return tuple(seats[: job.num_workers])


def _free(drawing: _SnapshotBuilder, pool: str) -> Counter[str]:
    """Unheld GPUs on the usable nodes of a pool."""
    free = Counter({node.name: node.num_gpus for node in drawing.nodes.values() if node.model == pool and node.is_fit})
    for name in free:
        free[name] -= drawing.taken[name]
    for run in drawing.runs:
        for name in (name for name in run.nodes if name in free):
            free[name] -= int(run.job.gpus_per_worker)
    return free
