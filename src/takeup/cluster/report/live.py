"""A controller at work: its log of decisions, the live view on a terminal, and metrics for Prometheus."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from takeup.cluster.model import Decision, Evict, Eviction, Grade, Hold, Kind, SetQuota, Start, State, Waiting
from takeup.cluster.report.outcomes import CLASSES
from takeup.core.control import ApplyOutcome, LoopCounters
from takeup.core.report import Cell, Column, Report, Table

MOST_DECISIONS = 30
WORDS = {Start: "start", Evict: "evict", Hold: "hold", SetQuota: "set quota"}


@dataclass(slots=True)
class DecisionLog:
    """Counts of decisions by kind and outcome; of those that change something, the latest."""

    counts: Counter[tuple[str, ApplyOutcome]] = field(default_factory=Counter)
    latest: deque[tuple[Decision, ApplyOutcome]] = field(default_factory=lambda: deque(maxlen=MOST_DECISIONS))
    _said: dict[str, str] = field(default_factory=dict)

    def note(self, decision: Decision, outcome: ApplyOutcome) -> bool:
        """Record a decision and its outcome; returns whether it is news."""
        self.counts[WORDS[type(decision)], outcome] += 1
        is_news = not isinstance(decision, Hold) and not self._is_repeated(decision, outcome)
        if is_news:
            self.latest.append((decision, outcome))
        return is_news

    def _is_repeated(self, decision: Start | Evict | SetQuota, outcome: ApplyOutcome) -> bool:
        """Whether this is an unchanged quota, or a dry-run decision repeated because it was not carried out."""
        is_quota = isinstance(decision, SetQuota)
        about = (
            decision.quota.pool if isinstance(decision, SetQuota) else f"{type(decision).__name__} {decision.job_id}"
        )
        before, self._said[about] = self._said.get(about), sentence(decision)
        return before == self._said[about] and (is_quota or outcome == "dry run")


def sentence(decision: Decision) -> str:
    """A decision in a line, with its reason."""
    match decision:
        case Start():
            return f"start {decision.job_id} on {_nodes(decision.nodes)}: {decision.reason}"
        case Evict():
            notice = f" in {decision.notice_s:g} s" if decision.notice_s else ""
            return f"evict {decision.job_id}{notice}: {decision.reason}"
        case SetQuota():
            offers = decision.quota.gpus_by_hours.items()
            menu = ", ".join(f"{gpus:.0f} GPUs for {hours:g} h" for hours, gpus in offers)
            return f"promise in {decision.quota.pool} at most {menu}: {decision.reason}"
        case Hold():
            return f"hold {decision.job_id}: {decision.reason}"


def _nodes(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def counts_table(diary: DecisionLog) -> Table:
    """How many decisions of each kind there were, by what became of them."""
    columns = (Column("decision"), Column("outcome"), Column("count"))
    rows = tuple((word, outcome, count) for (word, outcome), count in sorted(diary.counts.items()))
    return Table("Decisions", columns, rows)


def decisions_table(diary: DecisionLog, most: int = MOST_DECISIONS, title: str = "What was decided") -> Table:
    """The latest decisions that change something."""
    latest = tuple(diary.latest)[-most:]
    rows: tuple[tuple[Cell, ...], ...] = tuple((outcome, sentence(decision)) for decision, outcome in latest)
    note = f"the latest {len(rows)}; decisions to let a job wait are only counted" if rows else "nothing was decided"
    return Table(title, (Column("outcome"), Column("decision and reason")), rows, note)


def state_table(state: State) -> Table:
    """Pool by pool what runs on which terms, what is idle and what waits."""
    pools = dict.fromkeys(node.pool for node in state.nodes)
    columns = (
        Column("pool"),
        Column("GPUs", "", 0),
        *(Column(name, "GPUs", 1) for name in CLASSES.values()),
        Column("idle", "GPUs", 1),
        Column("waiting"),
    )
    return Table("The cluster now", columns, tuple(_state_row(state, pool) for pool in pools))


def used_gpus(state: State, pool: str) -> dict[Grade, float]:
    """GPUs of a pool in use, by the grade of the run."""
    used = dict.fromkeys(CLASSES, 0.0)
    for run in state.runs:
        if run.job.pool == pool:
            used[run.grade] += run.job.num_gpus
    return used


def _state_row(state: State, pool: str) -> tuple[Cell, ...]:
    capacity = float(sum(node.num_gpus for node in state.nodes if node.pool == pool))
    used = used_gpus(state, pool)
    waiting = sum(each.job.pool == pool for each in state.waiting)
    return (pool, capacity, *used.values(), max(0.0, capacity - sum(used.values())), waiting)


# Live view of a cluster under a scheduler: GPU use, quotas, the queue, recent evictions and the last decisions --------

BAR_WIDTH, MOST_ROWS, MOST_SHOWN = 20, 5, 6
LETTERS = {Grade.HIGH: "H", Grade.GUARANTEED: "G", Grade.OPPORTUNISTIC: "o"}
LEGEND = (
    "H high priority, G spot with a promise, o spot without one, . idle; high demand: running and waiting; "
    "quota: what may be promised"
)
HOUR_S = 3600.0


def screen(
    title: str, seed: int, state: State | None, diary: DecisionLog, counters: LoopCounters, problems: Sequence[str] = ()
) -> Report:
    """The tables of the live view; before the first state, only the last decisions and round counts."""
    shown = () if state is None else (_pools(state), _queue(state), _evictions(state))
    rounds = f"{counters.num_rounds} rounds, {counters.num_failed_rounds} of them failed"
    tables = (*shown, decisions_table(diary, MOST_SHOWN, "Last decisions"))
    return Report(title, "cluster", {}, seed, tables=tables, notes=(rounds, *problems[-1:]))


def _pools(state: State) -> Table:
    """One row per pool: use by class, high-priority demand and quota."""
    names = ("high", "promised", "no promise", "idle", "high demand", "quota")
    columns = (Column("pool"), Column("use"), *(Column(name, "", 0) for name in names))
    pools = dict.fromkeys(node.pool for node in state.nodes)
    return Table("GPUs", columns, tuple(_pool_row(state, pool) for pool in pools), LEGEND)


def _pool_row(state: State, pool: str) -> tuple[Cell, ...]:
    capacity = float(sum(node.num_gpus for node in state.nodes if node.pool == pool))
    used = used_gpus(state, pool)
    waiting = sum(it.job.num_gpus for it in state.waiting if it.job.pool == pool and it.job.kind == Kind.HIGH)
    quota = state.quotas.get(pool)
    most = None if quota is None else max(quota.gpus_by_hours.values(), default=0.0)
    idle = max(0.0, capacity - sum(used.values()))
    return (pool, _bar(used, capacity), *used.values(), idle, used[Grade.HIGH] + waiting, most)


def _bar(used: dict[Grade, float], capacity: float) -> str:
    """Classes as letters, each as wide as its share."""
    drawn, filled = "", 0.0
    for grade, letter in LETTERS.items():
        filled += used[grade]
        end = round(BAR_WIDTH * min(1.0, filled / capacity)) if capacity else 0
        drawn = drawn.ljust(end, letter)
    return drawn.ljust(BAR_WIDTH, ".")


def _queue(state: State) -> Table:
    """The waiting jobs, high priority first, then by waiting time."""
    columns = (Column("job"), Column("class"), Column("GPUs", "", 1), Column("waits", "s", 0), Column("evicted before"))
    ordered = sorted(state.waiting, key=lambda it: (it.job.kind, it.since_s))
    rows = tuple(_waiting_row(it, state.now_s) for it in ordered[:MOST_ROWS])
    return Table(f"Queue: {len(ordered)}", columns, rows, _rest(len(ordered)))


def _waiting_row(waiting: Waiting, now_s: float) -> tuple[Cell, ...]:
    job = waiting.job
    kind = "high priority" if job.kind == Kind.HIGH else "spot"
    return job.id, kind, job.num_gpus, max(0.0, now_s - waiting.since_s), waiting.num_evictions


def _evictions(state: State) -> Table:
    """The most recent evictions."""
    latest = sorted(state.evictions, key=lambda it: -it.when_s)
    num_lately = sum(state.now_s - it.when_s < HOUR_S for it in latest)
    columns = (Column("job"), Column("ago", "s", 0), Column("from"))
    rows = tuple(_eviction_row(it, state.now_s) for it in latest[:MOST_ROWS])
    return Table(f"Evictions: {num_lately} in the last hour", columns, rows, _rest(len(latest)))


def _eviction_row(eviction: Eviction, now_s: float) -> tuple[Cell, ...]:
    nodes = ", ".join(dict.fromkeys(eviction.nodes))
    return eviction.job_id, max(0.0, now_s - eviction.when_s), nodes if len(nodes) <= 40 else f"{nodes[:37]}..."


def _rest(count: int) -> str:
    return f"and {count - MOST_ROWS} more" if count > MOST_ROWS else ""


# A controller for Prometheus: what it has done and what the cluster looks like, in its text format --------------------

Labels = Mapping[str, object]


def prometheus(counters: LoopCounters, diary: DecisionLog, state: State | None) -> str:
    """All of it as text; without a state, only what was done."""
    return "".join(f"{line}\n" for line in (*_done(counters, diary), *(() if state is None else _seen(state))))


def _done(counters: LoopCounters, diary: DecisionLog) -> Iterator[str]:
    yield from _metric("rounds_total", "counter", [({}, counters.num_rounds)])
    yield from _metric("failed_rounds_total", "counter", [({}, counters.num_failed_rounds)])
    decided = [({"decision": word, "outcome": outcome}, n) for (word, outcome), n in sorted(diary.counts.items())]
    yield from _metric("decisions_total", "counter", decided)


def _seen(state: State) -> Iterator[str]:
    pools = tuple(dict.fromkeys(node.pool for node in state.nodes))
    capacity = [({"pool": pool}, sum(node.num_gpus for node in state.nodes if node.pool == pool)) for pool in pools]
    yield from _metric("gpus", "gauge", capacity)
    used = [
        ({"pool": pool, "grade": grade.name.lower()}, gpus)
        for pool in pools
        for grade, gpus in used_gpus(state, pool).items()
    ]
    yield from _metric("used_gpus", "gauge", used)
    waiting = [({"pool": pool}, sum(each.job.pool == pool for each in state.waiting)) for pool in pools]
    yield from _metric("waiting_jobs", "gauge", waiting)
    quotas = [
        ({"pool": pool, "hours": f"{hours:g}"}, gpus)
        for pool, quota in sorted(state.quotas.items())
        for hours, gpus in sorted(quota.gpus_by_hours.items())
    ]
    yield from _metric("quota_gpus", "gauge", quotas)


def _metric(name: str, kind: str, values: Sequence[tuple[Labels, float]]) -> Iterator[str]:
    full = f"takeup_cluster_{name}"
    yield f"# TYPE {full} {kind}"
    for labels, value in values:
        inside = ",".join(f'{key}="{_escaped(str(label))}"' for key, label in labels.items())
        yield f"{full}{{{inside}}} {value:g}" if inside else f"{full} {value:g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
