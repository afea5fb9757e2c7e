"""A controller for Prometheus: what it has done and what the cluster looks like, in its text format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from takeup.cluster.model import State
from takeup.cluster.report.diary import DecisionLog, used_gpus
from takeup.core.control import LoopCounters

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
