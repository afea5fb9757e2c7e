"""A controller at work: its log of decisions, the cluster as a table, and metrics for Prometheus."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from takeup.cluster.model import Decision, Evict, Grade, Hold, SetQuota, Start, State
from takeup.cluster.report.outcomes import CLASSES
from takeup.core.control import ApplyOutcome, LoopCounters
from takeup.core.report import Cell, Column, Table

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


def decisions_table(diary: DecisionLog) -> Table:
    """The latest decisions that change something."""
    rows: tuple[tuple[Cell, ...], ...] = tuple((outcome, sentence(decision)) for decision, outcome in diary.latest)
    note = f"the latest {len(rows)}; decisions to let a job wait are only counted" if rows else "nothing was decided"
    return Table("What was decided", (Column("outcome"), Column("decision and reason")), rows, note)


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
