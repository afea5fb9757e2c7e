"""Live view of a cluster under a scheduler: GPU use, quotas, the queue, recent evictions and the last decisions."""

from __future__ import annotations

from collections.abc import Sequence

from takeup.cluster.model import Eviction, Grade, Kind, State, Waiting
from takeup.cluster.report.diary import DecisionLog, sentence, used_gpus
from takeup.core.control import LoopCounters
from takeup.core.report import Cell, Column, Report, Table

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
    tables = () if state is None else (_pools(state), _queue(state), _evictions(state))
    rounds = f"{counters.num_rounds} rounds, {counters.num_failed_rounds} of them failed"
    return Report(title, "cluster", {}, seed, tables=(*tables, _decisions(diary)), notes=(rounds, *problems[-1:]))


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


def _decisions(diary: DecisionLog) -> Table:
    latest = tuple(diary.latest)[-MOST_SHOWN:]
    rows: tuple[tuple[Cell, ...], ...] = tuple((outcome, sentence(decision)) for decision, outcome in latest)
    return Table("Last decisions", (Column("outcome"), Column("decision and reason")), rows)
