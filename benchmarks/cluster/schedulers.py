"""How fast and how well the cluster schedules: `python -m benchmarks.cluster schedulers [--only PART]`.

Prints one report: the compiled pass beside a plain one, decisions at 1,000 nodes, the whole production fleet, and all
schedulers on the calibrated pool. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import benchmarks.support.one_thread  # noqa: F401  before numpy

# isort: split
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from math import inf

import numpy as np

from benchmarks.cluster.scheduler_table import (
    LOADS,
    ablation_table,
    checks_of,
    load_table,
    measure_ablations,
    measure_loads,
)
from benchmarks.support.dated import options_of, publish, versions
from support.gang_victims import best_victims, prices_gpu_s
from support.plain_scheduling_pass import PlainPass
from takeup.cluster.contract import StaticQuota
from takeup.cluster.model import Evict, Grade, Job, Kind, Node, Run, State, Waiting
from takeup.cluster.policies import POLICIES
from takeup.cluster.policies.rule_based import RuleBasedScheduler
from takeup.cluster.scheduling.scheduling_pass import run_pass
from takeup.cluster.scheduling.snapshot import from_state
from takeup.core.report import Check, Column, Report, Table

SEED, NUM_SEEDS, NUM_ABLATION_SEEDS = 0, 3, 16
NOW_S = 1e6
QUOTA = np.array([inf]), np.array([inf])
NUM_PLAIN_NODES, NUM_NODES, NUM_DECISIONS, NUM_GANGS, NUM_GAPS = 64, 1000, 400, 40, 60
NUM_LARGE_NODES, STATE_BAR_MS, LARGE_STATE_BAR_MS = 20_000, 5.0, 100.0
SPEED_BAR, DECISION_BAR_MS, GANG_BAR_MS, REPLAY_BAR_S, MEMORY_BAR_GB = 100.0, 1.0, 10.0, 60.0, 2.0
STATE = f"state to decisions at {NUM_NODES} nodes, {NUM_NODES // 10} jobs wait"
LARGE_STATE = f"state to decisions at {NUM_LARGE_NODES} nodes, {NUM_LARGE_NODES // 10} jobs wait"
PARTS = ("speed", "fleet", "table", "ablations")

WHOLE_FLEET = """
import resource, time
from takeup.cluster.policies import find_policy
from takeup.cluster.quota import SpotQuota
from takeup.cluster.simulate import replay
from takeup.cluster.traces import generate
from takeup.core.seeds import Streams
replay(generate("small", Streams(0), 2), find_policy("gfs", SpotQuota()))
workload = generate("v2026_served", Streams(0))
began_s = time.process_time()
replay(workload, find_policy("gfs", SpotQuota()))
spent_s = time.process_time() - began_s
print(workload.num_jobs, workload.num_nodes, spent_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


# States ---------------------------------------------------------------------------------------------------------------


def crowded(num_nodes: int, seed: int, idle_share: float = 0.04) -> State:
    """Nodes of eight GPUs, nearly full, half of the jobs spot; nobody waits."""
    chance = np.random.default_rng(seed)
    free, runs = np.full(num_nodes, 8), list[Run]()
    while free.sum() > idle_share * 8 * num_nodes:
        gpus, workers = int(chance.choice([1, 1, 1, 2, 4, 8])), int(chance.choice([1, 1, 1, 1, 2, 4]))
        fitting = np.flatnonzero(free >= gpus)
        if len(fitting) < workers:
            gpus, workers, fitting = 1, 1, np.flatnonzero(free)
        seats = chance.choice(fitting, workers, replace=False)
        free[seats] -= gpus
        runs.append(_run(f"job{len(runs):05d}", gpus, seats.tolist(), chance))
    return State(NOW_S, tuple(Node(f"n{i}", "a100", 8) for i in range(num_nodes)), tuple(runs), ())


def _run(name: str, gpus: int, seats: list[int], chance: np.random.Generator) -> Run:
    kind, start_s = Kind(int(chance.random() < 0.5)), NOW_S - float(chance.integers(60, 20_000))
    job = Job(name, kind, "org", "a100", float(gpus), len(seats), start_s)
    grade = Grade.HIGH if kind == Kind.HIGH else Grade(int(chance.integers(1, 3)))
    saved_s = max(start_s, NOW_S - float(chance.integers(0, 3600)))
    return Run(job, tuple(f"n{seat}" for seat in seats), start_s, grade, saved_s, int(chance.integers(0, 2)))


def with_waiting(state: State, *jobs: Job) -> State:
    """The state with these jobs in its queue."""
    return State(state.now_s, state.nodes, state.runs, tuple(Waiting(job, state.now_s) for job in jobs))


def gang(num_workers: int, gpus: float = 8.0) -> Job:
    """A high-priority gang that came last."""
    return Job("new", Kind.HIGH, "org", "a100", gpus, num_workers, NOW_S)


def queue(num_jobs: int, seed: int) -> list[Waiting]:
    """Jobs of both kinds that have waited for up to three hours."""
    chance = np.random.default_rng(seed)
    shapes = chance.choice([1, 1, 1, 2, 4, 8], num_jobs), chance.choice([1, 1, 1, 1, 2, 4], num_jobs)
    since_s = NOW_S - chance.integers(1, 10_800, num_jobs)
    kinds = chance.integers(0, 2, num_jobs)
    return [
        Waiting(Job(f"new{place}", Kind(int(kind)), "org", "a100", float(gpus), int(workers), when_s), when_s)
        for place, (kind, gpus, workers, when_s) in enumerate(zip(kinds, *shapes, since_s.tolist(), strict=True))
    ]


def repeated(state: State, num_copies: int) -> State:
    """A fleet of this many equal parts."""
    nodes = tuple(replace(node, name=f"{node.name}.{copy}") for copy in range(num_copies) for node in state.nodes)
    runs = tuple(
        replace(
            run,
            job=replace(run.job, id=f"{run.job.id}.{copy}"),
            nodes=tuple(f"{name}.{copy}" for name in run.nodes),
        )
        for copy in range(num_copies)
        for run in state.runs
    )
    return State(state.now_s, nodes, runs, ())


# Speed ----------------------------------------------------------------------------------------------------------------


def cpu_ms_of(action: Callable[[], object]) -> float:
    """CPU milliseconds of one run."""
    began_ns = time.process_time_ns()
    action()
    return (time.process_time_ns() - began_ns) / 1e6


def pass_ms(state: State) -> float:
    """CPU milliseconds of one compiled pass about a state whose arrays are ready, as in a replay."""
    fleet = from_state(state, "a100", POLICIES["gfs"]).fleet
    return cpu_ms_of(lambda: run_pass(fleet, NOW_S, *QUOTA, POLICIES["gfs"]))


def state_ms(state: State, num_waiting: int, num_times: int = 7) -> float:
    """CPU milliseconds from a state with a queue of this length to decisions: the median of all but the first."""
    live = RuleBasedScheduler("gfs", POLICIES["gfs"], StaticQuota(0.2))
    busy = replace(state, waiting=tuple(queue(num_waiting, SEED)))
    spent_ms = [cpu_ms_of(lambda: live.decide(busy)) for _ in range(num_times)]
    return float(np.median(spent_ms[1:]))


def speed_rows() -> dict[str, tuple[float, str]]:
    """Figures and units by name."""
    small = with_waiting(crowded(NUM_PLAIN_NODES, SEED), gang(4), gang(1, 1.0))
    pass_ms(small)
    plain_ms = cpu_ms_of(lambda: PlainPass(small, POLICIES["gfs"], inf).decide())
    fast_ms = min(pass_ms(small) for _ in range(20))
    large = crowded(NUM_NODES, SEED)
    chance = np.random.default_rng(SEED)
    singles = [pass_ms(with_waiting(large, gang(1, float(chance.choice([1, 2, 4, 8]))))) for _ in range(NUM_DECISIONS)]
    gangs = [pass_ms(with_waiting(large, gang(int(chance.choice([2, 4, 8, 16]))))) for _ in range(NUM_GANGS)]
    whole = repeated(large, NUM_LARGE_NODES // NUM_NODES)
    return {
        f"pass with a gang at {NUM_PLAIN_NODES} nodes, plain": (plain_ms, "cpu ms"),
        f"pass with a gang at {NUM_PLAIN_NODES} nodes": (fast_ms, "cpu ms"),
        "times faster": (plain_ms / fast_ms, ""),
        f"decision at {NUM_NODES} nodes, p99": (float(np.percentile(singles, 99)), "cpu ms"),
        f"gang with preemption at {NUM_NODES} nodes, p99": (float(np.percentile(gangs, 99)), "cpu ms"),
        STATE: (state_ms(large, NUM_NODES // 10), "cpu ms"),
        LARGE_STATE: (state_ms(whole, NUM_LARGE_NODES // 10), "cpu ms"),
        **gap_rows(),
    }


def gap_rows() -> dict[str, tuple[float, str]]:
    """How much more the fast way pays for victims of a gang than the proven best."""
    gaps = []
    for seed in range(NUM_GAPS):
        state = with_waiting(crowded(NUM_PLAIN_NODES, seed), gang(4 + seed % 8))
        spot = [run for run in state.runs if run.job.kind == Kind.SPOT]
        price = dict(zip((run.job.id for run in spot), prices_gpu_s(spot, NOW_S, POLICIES["gfs"]), strict=True))
        plan = best_victims(state, state.waiting[0].job, POLICIES["gfs"])
        if plan is not None and plan.victims:
            fast = RuleBasedScheduler("gfs", POLICIES["gfs"], StaticQuota(0.2)).decide(state)
            paid = sum(price[it.job_id] for it in fast if isinstance(it, Evict) and it.for_job == "new")
            gaps.append(paid / plan.price_gpu_s - 1)
    return {
        "victims of gangs: the fast way pays more, mean": (100 * float(np.mean(gaps)), "%"),
        "victims of gangs: the fast way is not the best in": (100 * float(np.mean(np.array(gaps) > 1e-6)), "%"),
    }


def fleet_rows() -> dict[str, tuple[float, str]]:
    """The whole production fleet in a fresh process, compiled code ready."""
    answer = subprocess.run([sys.executable, "-c", WHOLE_FLEET], check=True, capture_output=True, text=True)
    num_jobs, num_nodes, spent_s, memory_kb = map(float, answer.stdout.split())
    return {
        "jobs of the whole fleet": (num_jobs, ""),
        "nodes of the whole fleet": (num_nodes, ""),
        "184 days under gfs": (spent_s, "cpu s"),
        "peak memory": (memory_kb * 1024 / 1e9, "GB"),
    }


# Report ---------------------------------------------------------------------------------------------------------------


def figures_table(title: str, rows: dict[str, tuple[float, str]]) -> Table:
    """Names, figures and units."""
    columns = (Column("what"), Column("figure", "", 3), Column("unit"))
    return Table(title, columns, tuple((name, figure, unit) for name, (figure, unit) in rows.items()))


def speed_checks(rows: dict[str, tuple[float, str]]) -> list[Check]:
    """The bars for speed."""
    return [
        Check.at_least("pass: times faster than plain", rows["times faster"][0], SPEED_BAR),
        Check.at_most("decision p99", rows[f"decision at {NUM_NODES} nodes, p99"][0], DECISION_BAR_MS, unit="ms"),
        Check.at_most(
            "gang with preemption p99",
            rows[f"gang with preemption at {NUM_NODES} nodes, p99"][0],
            GANG_BAR_MS,
            unit="ms",
        ),
        Check.at_most("state to decisions at 1,000 nodes", rows[STATE][0], STATE_BAR_MS, unit="ms"),
        Check.at_most("state to decisions at 20,000 nodes", rows[LARGE_STATE][0], LARGE_STATE_BAR_MS, unit="ms"),
    ]


def measure(
    parts: tuple[str, ...], seeds: tuple[int, ...], ablation_seeds: tuple[int, ...], loads: tuple[str, ...]
) -> Report:
    """What was asked for."""
    tables, checks = list[Table](), list[Check]()
    if "speed" in parts:
        speed = speed_rows()
        tables.append(figures_table("Speed", speed))
        checks += speed_checks(speed)
    if "fleet" in parts:
        fleet = fleet_rows()
        tables.append(figures_table("Whole fleet", fleet))
        checks.append(Check.at_most("whole fleet", fleet["184 days under gfs"][0], REPLAY_BAR_S, unit="cpu s"))
        checks.append(Check.at_most("peak memory", fleet["peak memory"][0], MEMORY_BAR_GB, unit="GB"))
    if "table" in parts:
        rows = measure_loads(seeds, loads)
        tables += [load_table(load, of, seeds) for load, of in rows.items()]
        checks += checks_of(rows)
    if "ablations" in parts:
        for full in ("gfs", "gfs_published"):
            tables.append(ablation_table(full, measure_ablations(full, ablation_seeds), ablation_seeds))
    command = "python -m benchmarks.cluster schedulers" + ("" if parts == PARTS else f" --only {','.join(parts)}")
    command += "" if len(seeds) == NUM_SEEDS else f" --num-seeds {len(seeds)}"
    command += "" if loads == tuple(LOADS) else f" --loads {','.join(loads)}"
    command += "" if len(ablation_seeds) == NUM_ABLATION_SEEDS else f" --num-ablation-seeds {len(ablation_seeds)}"
    return Report(
        title="Cluster: speed and quality of scheduling",
        domain="cluster",
        scenario={"command": command, "seeds": list(seeds), "num_nodes": NUM_NODES},
        seed=SEED,
        tables=tuple(tables),
        checks=tuple(checks),
        notes=(
            f"Command: {command}. Versions: {versions(('takeup', 'numba', 'numpy', 'scipy'))}.",
            "Times are CPU times on one thread. Tables: the last 62 days of the calibrated trace, of which spot jobs "
            "come in the last 31; every scheduler with a quota has the same one.",
        ),
    )


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--num-seeds", type=int, default=NUM_SEEDS, help="of the tables of schedulers")
    parser.add_argument("--num-ablation-seeds", type=int, default=NUM_ABLATION_SEEDS)
    parser.add_argument(
        "--loads", default=",".join(LOADS), help=f"of the tables of schedulers, some of {', '.join(LOADS)}"
    )
    options = parser.parse_args()
    parts = tuple(part for part in PARTS if part in options.only.split(","))
    loads = tuple(load for load in LOADS if load in options.loads.split(","))
    report = measure(parts, tuple(range(options.num_seeds)), tuple(range(options.num_ablation_seeds)), loads)
    names = ["cluster", *(() if parts == PARTS else parts), *(() if loads == tuple(LOADS) else loads)]
    return publish(report, "-".join(names), options)
