"""The job-graph part of the caching benchmark: a million accesses under every policy, in one process, on one core."""

from __future__ import annotations

import time

import numpy as np

from takeup.caching.model import EngineModel, Workload
from takeup.caching.policies import POLICIES, find_policy
from takeup.caching.simulate.compiled.replay import replay
from takeup.caching.traces.generators import GraphShape, graph_iterations
from takeup.core.report import Check, Column, Table

SHAPE = GraphShape(num_partitions=2_000, num_iterations=125)
CACHE_SHARE = 0.02
TOTAL_BAR_S = 10.0
COLUMNS = (
    Column("policy"),
    Column("time", "cpu s", 2),
    Column("rate", "M accesses/cpu s", 2),
    Column("hits"),
    Column("effective"),
)


def million_accesses(seed: int) -> Workload:
    """An iterative graph application with exactly a million block accesses."""
    return graph_iterations("pagerank, 1 M accesses", SHAPE, np.random.default_rng(seed))


def measure_jobs(seed: int) -> tuple[Table, Check]:
    """CPU seconds of every policy, layout included, after one run that loads the compiled code."""
    workload = million_accesses(seed)
    model = EngineModel(round(CACHE_SHARE * workload.working_set_bytes))
    replay(find_policy("lru"), workload, model)
    rows, total_s = [], 0.0
    for name in POLICIES:
        began_s = time.process_time()
        result = replay(find_policy(name), workload, model)
        cpu_s = time.process_time() - began_s
        total_s += cpu_s
        rows.append((name, cpu_s, workload.num_accesses / cpu_s / 1e6, result.hit_share, result.effective_hit_share))
    note = (
        f"{workload.num_tasks} tasks, {workload.num_blocks} blocks, cache {CACHE_SHARE:.0%}; no peer replays job graphs"
    )
    table = Table("Replay of a job graph with a million accesses", COLUMNS, tuple(rows), note)
    return table, Check.at_most("job graph, all policies", total_s, TOTAL_BAR_S, unit="cpu s")
