"""A stock Slurm as an engine: jobs are held on submission, then released, placed, requeued and limited as decided.

How it works. Jobs of three qualities of service are ours: high priority, guaranteed spot and opportunistic spot. Slurm
itself stores what matters: a held job waits, a released job with required nodes is started, the quality of service of a
spot job says on which terms it runs, and the limit of the guaranteed one is the quota, so that not even a faulty
controller can promise more. The journal adds what Slurm forgets. Hence a controller may be killed at any moment: the
next one reads Slurm and continues.

Victims of a high-priority job are evicted after that job was given its nodes and just before it is released: no job is
evicted for one that cannot start, and Slurm, which looks for a job to start whenever one has ended, finds it pending
instead of looking again a second later.

Nothing is done on a stale state: if a round takes too long, or the clock goes backwards, the rest of it is refused.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime
from math import floor, isfinite
from pathlib import Path

from takeup.cluster.engines.slurm.backoff import Backoff, JobBackoff
from takeup.cluster.engines.slurm.commands import Slurm, SlurmDown, caller
from takeup.cluster.engines.slurm.journal import Journal, Notice, SlurmLedger
from takeup.cluster.engines.slurm.rows import (
    EXPLAINS,
    NEVER,
    JobRow,
    JobStatus,
    NodeRow,
    QosClasses,
    past_workload,
    read_job,
    read_node,
    read_remarks,
)
from takeup.cluster.engines.slurm.snapshot import ClusterSnapshot, build_state, named_nodes
from takeup.cluster.model import Decision, Evict, Grade, Hold, SetQuota, Start, State, Workload
from takeup.errors import BadInput, TakeupError

GATE = "takeup gate"  # the AdminComment of a job that the gate holds
SLACK_S = 1.0  # clock corrections up to this size are ignored


class StaleState(TakeupError):
    """What is known of the cluster is too old to act on."""


@dataclass(slots=True)
class SlurmEngine:
    """Slurm as configured in `conf`, or the one of this machine; `read_only` changes nothing, whatever is decided.

    Decisions are refused when the state they rest on is older than `max_age_s`. A job that Slurm has not started
    `start_limit_s` after its release is held again and left out for a while, so that other jobs get its GPUs.
    """

    journal: Path | None = None
    _: KW_ONLY
    conf: Path | None = None
    classes: QosClasses = field(default_factory=QosClasses)
    read_only: bool = False
    max_age_s: float = 10.0
    start_limit_s: float = 30.0
    slurm: Slurm | None = None
    wall: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic
    ledger: SlurmLedger = field(init=False)
    backoff: Backoff = field(init=False)
    _slurm: Slurm = field(init=False)
    _snapshot: ClusterSnapshot | None = field(default=None, init=False)
    _seen_at_s: float = field(default=0.0, init=False)
    _now_s: float = field(default=0.0, init=False)
    _limits: dict[str, str] = field(default_factory=dict, init=False)
    _first_submit_s: dict[str, float] = field(default_factory=dict, init=False)
    _job_backoff: JobBackoff = field(default_factory=JobBackoff, init=False)
    _released_s: dict[str, float] = field(default_factory=dict, init=False)  # these three by the monotonic clock
    _notice_ends_s: dict[str, float] = field(default_factory=dict, init=False)
    _room: dict[str, list[tuple[JobRow, str]]] = field(default_factory=dict, init=False)
    _denied: set[str] = field(default_factory=set, init=False)  # jobs that no other is evicted for
    _is_prepared: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._slurm = self.slurm or Slurm(caller(self.conf))
        journal = None if self.journal is None or self.read_only else Journal(self.journal)
        self.ledger = SlurmLedger(journal)
        self.backoff = Backoff(self.monotonic)

    @property
    def skipped(self) -> Counter[str]:
        """What the last state left out, by reason."""
        return Counter() if self._snapshot is None else self._snapshot.skipped

    def observe(self) -> State:
        """The cluster as it is now; while Slurm is away, `SlurmDown` at once and a new attempt only now and then."""
        self._make_room_anyway()
        self._denied.clear()
        self._slurm.settle()
        self._snapshot = None
        self._pass_time()
        self.backoff.require()
        try:
            self._prepare()
            self._seen_at_s = self.monotonic()
            nodes, rows = self._nodes(), self._rows()
            if not self.read_only:
                rows = self._finish(rows, nodes)
        except SlurmDown:
            self.backoff.failed()
            raise
        self.backoff.succeeded()
        resting = self._job_backoff.names(self.monotonic())
        self._snapshot = build_state(rows, nodes, self.ledger, self.classes, self._now_s, self._first_submit_s, resting)
        return self._snapshot.state

    def apply(self, decision: Decision) -> None:
        """Carry one decision out; a TakeupError refuses it and leaves everything as it was."""
        if isinstance(decision, Hold):
            return  # a job waits until it is released
        picture = self._fresh_snapshot()
        if self.read_only:
            raise BadInput("this engine was opened to look only; open it without read_only to let it act")
        if isinstance(decision, Start):
            self._start(picture, decision)
        elif isinstance(decision, Evict):
            self._evict(picture, decision)
        else:
            self._set_quota(picture, decision)

    def past(self, begin: datetime, end: datetime) -> tuple[Workload, Counter[str]]:
        """What ran between two moments, as a workload to replay, and how many rows were left out, by reason."""
        times = (it.astimezone().strftime("%Y-%m-%dT%H:%M:%S") for it in (begin, end))
        return past_workload(self._slurm.past_jobs(*times), self._nodes(), self.classes, begin.timestamp())

    def close(self) -> None:
        """Let another controller have the journal."""
        if self.ledger.journal is not None:
            self.ledger.journal.close()

    # Looking ----------------------------------------------------------------------------------------------------------

    def _pass_time(self) -> None:
        now_s, before_s = self.wall(), self._now_s
        self._now_s = now_s
        if now_s < before_s - SLACK_S:
            raise StaleState("the clock went backwards; this round is skipped, the next one goes by the new time")

    def _prepare(self) -> None:
        if self._is_prepared:
            return
        wanted = {self.classes.high, self.classes.guaranteed, self.classes.opportunistic}
        if missing := sorted(wanted - self._slurm.known_qos()):
            commands = "; ".join(f"sacctmgr add qos {name}" for name in missing)
            raise BadInput(f"Slurm has no QOS {', '.join(missing)}; create what is missing: {commands}")
        self._end_what_was_begun()
        self._is_prepared = True

    def _end_what_was_begun(self) -> None:
        """Evictions in which a predecessor was killed a moment ago; some of its commands may still be on their way."""
        begun = self.ledger.begun_since(self._now_s - self.max_age_s)
        if begun and not self.read_only:
            with suppress(BadInput):  # some left by themselves
                self._slurm.evict(*begun)

    def _nodes(self) -> dict[str, NodeRow]:
        found = (read_node(row) for row in self._slurm.nodes())
        return {node.name: node for node in found if node is not None}

    def _rows(self) -> list[JobRow]:
        every = [job for row in self._slurm.jobs() for job in read_job(row)]
        failed = {row.id for row in every if row.has_failed}
        rows = [row for row in every if row.status != JobStatus.OVER]
        present = {NEVER, *(row.id.partition("_")[0] for row in rows)}
        rows = [_with_unmet(row, present, failed) if row.depends_on else row for row in rows]
        # Slurm resets the submit time of a requeued job.
        known = self._first_submit_s
        self._first_submit_s = {row.id: known.get(row.id, row.submit_s) for row in rows}
        # Nor does it say since when a job may start: a release in another second than the order before clears that.
        released = [row.id for row in rows if row.status == JobStatus.RELEASED]
        now_s = self.monotonic()  # the wall clock may be set at any time
        self._released_s = {name: self._released_s.get(name, now_s) for name in released}
        return rows

    def _finish(self, rows: list[JobRow], nodes: Mapping[str, NodeRow]) -> list[JobRow]:
        """What earlier rounds left to do: settle what a crash left open, evict after a notice, hold what is stuck."""
        self.ledger.settle(rows, self._now_s)
        self.ledger.tidy(self._now_s)
        due = self._due(rows)
        for row in due:
            with suppress(BadInput):  # it left by itself
                self._remove(row, self.ledger.notices[row.id].for_job, "the time of its notice is over")
        stuck = [row for row in rows if self._is_stuck(row, nodes)]
        for row in stuck:
            self.ledger.note_hold(row)
            self._try(self._slurm.hold, row.id)
            if all(name in nodes and nodes[name].is_fit for name in row.required_nodes):
                self._job_backoff.put_off(row.id, self.monotonic())
        return self._rows() if due or stuck else rows

    def _due(self, rows: list[JobRow]) -> list[JobRow]:
        """Jobs under notice whose notice has expired, or whose preemptor has no victim still saving work."""
        rows_under = {row.id: row for row in rows if row.id in self.ledger.notices}
        busy = {self.ledger.notices[row.id].for_job for row in rows_under.values() if self._still_saves(row)}
        notices = self.ledger.notices
        return [
            row
            for row in rows_under.values()
            if self.monotonic() >= self._notice_end_s(notices[row.id]) or notices[row.id].for_job not in busy
        ]

    def _notice_end_s(self, notice: Notice) -> float:
        """When a notice ends by the monotonic clock; one that a predecessor gave is converted once."""
        left_s = min(max(0.0, notice.until_s - self._now_s), notice.until_s - notice.since_s)
        return self._notice_ends_s.setdefault(f"{notice.job_id} {notice.since_s}", self.monotonic() + left_s)

    def _still_saves(self, row: JobRow) -> bool:
        remarks = read_remarks(row.comments, self._now_s)
        told_s = floor(self.ledger.notices[row.id].since_s)  # jobs report whole seconds
        return bool(remarks.signal) and remarks.saved_s < told_s

    def _is_stuck(self, row: JobRow, nodes: Mapping[str, NodeRow]) -> bool:
        """Whether a job that was released will not start soon: Slurm does not want it, or lost one of its nodes."""
        if row.status != JobStatus.RELEASED or self.classes.grade(row.qos) is None or not row.required_nodes:
            return False
        is_homeless = any(name not in nodes or not nodes[name].is_fit for name in row.required_nodes)
        is_late = self.monotonic() - self._released_s[row.id] > self.start_limit_s
        return is_homeless or NEVER in row.depends_on or is_late

    # Acting -----------------------------------------------------------------------------------------------------------

    def _fresh_snapshot(self) -> ClusterSnapshot:
        if self._snapshot is None:
            raise StaleState("nothing is known about the cluster now; observe it first")
        age_s = self.monotonic() - self._seen_at_s
        if age_s > self.max_age_s or self.wall() < self._now_s - SLACK_S:
            raise StaleState(f"the state is older than {self.max_age_s:g} s; the rest of this round is skipped")
        return self._snapshot

    def _start(self, picture: ClusterSnapshot, decision: Start) -> None:
        if decision.job_id in self._denied:
            raise BadInput(f"job {decision.job_id} needs evictions that were refused; let it wait")
        room = self._room.pop(decision.job_id, [])
        row = _row(picture, decision.job_id)
        if row.status != JobStatus.HELD:
            return  # released before, by this controller or its predecessor
        ask = row.ask
        usable = picture.usable_nodes(row.id)
        if ask is None or not usable.issuperset(decision.nodes):
            raise BadInput(f"job {row.id} cannot run on {','.join(decision.nodes)}; observe again")
        self._require_quota(picture, row, decision)
        self.ledger.intend_start(decision, self._now_s, row.num_restarts)
        nodes = tuple(dict.fromkeys(decision.nodes))
        settings = [f"QOS={self.classes.qos(decision.grade)}", *_explained(row, decision.reason)]
        if not ask.is_apart:
            settings.append(f"NumNodes={len(nodes)}")  # its tasks may share nodes, and these are enough
        is_urgent = decision.grade == Grade.HIGH
        self._slurm.place(row.id, nodes, *settings, is_urgent=is_urgent)
        self._make_room(row.id, room)
        self._slurm.release(row.id, is_urgent=is_urgent)
        self._released_s[row.id] = self.monotonic()
        if decision.grade == Grade.GUARANTEED:
            picture.guaranteed_gpus[_pool(picture, decision)] += ask.gpus_per_worker * ask.num_workers

    def _require_quota(self, picture: ClusterSnapshot, row: JobRow, decision: Start) -> None:
        pool = _pool(picture, decision)
        quota = self.ledger.quotas.get(pool)
        if decision.grade != Grade.GUARANTEED or quota is None or row.ask is None:
            return
        most = max(quota.gpus_by_hours.values(), default=0.0)
        held = picture.guaranteed_gpus[pool]
        if held + row.ask.gpus_per_worker * row.ask.num_workers > most:
            raise BadInput(f"job {row.id} would exceed the quota of {most:g} GPUs, {held} are in use; let it wait")
        self._limit(picture, pool, most)

    def _evict(self, picture: ClusterSnapshot, decision: Evict) -> None:
        row = _row(picture, decision.job_id)
        if self.classes.grade(row.qos) in (None, Grade.HIGH):
            raise BadInput(f"job {row.id} has the QOS {row.qos!r}; only spot jobs are evicted")
        ahead = picture.rows.get(decision.for_job)
        is_high = ahead is None or self.classes.grade(ahead.qos) == Grade.HIGH
        if ahead is not None and not is_high and not picture.state.may_move(row.id, ahead.id):
            self._denied.add(ahead.id)
            raise BadInput(
                f"job {ahead.id} has the QOS {ahead.qos!r}; only narrower jobs without a promise move for it"
            )
        if row.status == JobStatus.HELD or row.id in self.ledger.notices:
            return
        if decision.notice_s > 0 and row.status == JobStatus.RUNNING:
            notice = Notice(row.id, decision.for_job, self._now_s, self._now_s + decision.notice_s)
            self.ledger.give_notice(notice, decision.reason)
            self._notice_end_s(notice)
            if signal := picture.remarks[row.id].signal:
                self._slurm.signal(row.id, signal)
            return
        if ahead is not None and ahead.status == JobStatus.HELD and not self.ledger.is_evicted(row):
            self._room.setdefault(decision.for_job, []).append((row, decision.reason))
        else:
            self._remove(row, decision.for_job, decision.reason)

    def _make_room(self, for_job: str, room: list[tuple[JobRow, str]]) -> None:
        """Evict all victims with one journal sync and one command: one per victim would be slow."""
        released = [(row, reason) for row, reason in room if row.status == JobStatus.RELEASED]
        for row, reason in released:
            with suppress(BadInput):  # it left by itself
                self._remove(row, for_job, reason)
        victims = [(row, reason) for row, reason in room if row.status == JobStatus.RUNNING]
        self.ledger.intend_evictions(victims, for_job, self._now_s)
        if victims:
            with suppress(BadInput):  # some left by themselves; which ones is seen at the next look
                self._slurm.evict(*(row.id for row, _ in victims))

    def _make_room_anyway(self) -> None:
        """For jobs that were not started in the round that made room for them, unless that was long ago."""
        waiting, self._room = self._room, {}
        with suppress(SlurmDown, StaleState):
            for job_id, room in waiting.items():
                self._fresh_snapshot()
                self._make_room(job_id, room)

    def _remove(self, row: JobRow, for_job: str, reason: str) -> None:
        """Requeue a job that runs; one that Slurm has not started yet is merely held again."""
        if row.status == JobStatus.RELEASED:
            self.ledger.note_hold(row)
            if self._try(self._slurm.hold, row.id):
                return
        if self.ledger.is_evicted(row):
            raise BadInput(f"job {row.id} was evicted a moment ago; no run is evicted twice, observe again")
        self.ledger.intend_evictions([(row, reason)], for_job, self._now_s)
        try:
            self._slurm.evict(row.id)
        except BadInput:
            self.ledger.forget(row.id, "evict")
            raise

    def _try(self, action: Callable[[str], None], job_id: str) -> bool:
        """Whether Slurm agreed; a job may have moved on since we looked."""
        try:
            action(job_id)
        except BadInput:
            return False
        return True

    def _set_quota(self, picture: ClusterSnapshot, decision: SetQuota) -> None:
        self.ledger.note_quota(decision, self._now_s)  # ours first: from here on no job is admitted above it
        self._limit(picture, decision.quota.pool, max(decision.quota.gpus_by_hours.values(), default=0.0))

    def _limit(self, picture: ClusterSnapshot, pool: str, most: float) -> None:
        """Set Slurm's limit: what may be promised, and what runs on after its promised hours in the same QOS."""
        pools = {node.pool for node in picture.state.nodes}
        resource = "gres/gpu" if len(pools) == 1 else f"gres/gpu:{pool}"
        limit = f"{resource}={floor(most) + picture.outlived_gpus[pool] if isfinite(most) else -1}"
        if self._limits.get(pool) != limit:
            self._slurm.limit(self.classes.guaranteed, limit)
            self._limits[pool] = limit


def _with_unmet(row: JobRow, present: set[str], failed: set[str]) -> JobRow:
    """Slurm does not look at what a held job depends on, so we do: what is over counts only if it had to succeed."""
    if failed.intersection(row.needs):
        return replace(row, depends_on=(NEVER,))
    return replace(row, depends_on=tuple(name for name in row.depends_on if name in present))


def _row(picture: ClusterSnapshot, job_id: str) -> JobRow:
    if job_id not in picture.rows:
        raise BadInput(f"Slurm has no job {job_id} any more; observe again")
    return picture.rows[job_id]


def _pool(picture: ClusterSnapshot, decision: Start) -> str:
    return next(node.pool for node in picture.state.nodes if node.name == decision.nodes[0])


def _explained(row: JobRow, reason: str) -> list[str]:
    """The reason as an AdminComment, unless the job has an AdminComment that is not ours."""
    if row.comments[0] and not row.comments[0].startswith((EXPLAINS, GATE)):
        return []
    names = named_nodes(row, read_remarks(row.comments, 0.0))
    only = f" takeup only={','.join(names)}" if names else ""  # our nodes replace the list that its owner gave
    return [f"AdminComment={EXPLAINS} {reason[:200]}{only}"]
