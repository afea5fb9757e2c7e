"""Oracle: optimal victims for a gang, by an integer program with a proven bound."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array, eye_array, hstack

from takeup.cluster.model import Grade, Job, Kind, Run, State
from takeup.cluster.scheduling.rules import SchedulerRules
from takeup.cluster.scheduling.snapshot import from_state
from takeup.core.arrays import Floats

# Optimal victims for a gang: a small integer program, with a proven bound on the gap of any other choice --------------
#
# How it works. x[n] workers go to node n; y[j] is 1 if spot job j is evicted. A node must hold its workers in what is
# idle and what its victims free; together the nodes hold the gang; the total price of the victims is minimal. Nodes
# that cannot hold a worker even if all spot jobs were evicted, and spot jobs elsewhere, are not in the program. The
# solver (HiGHS, in scipy) stops after `MOST_TREE_NODES` nodes of its search tree or at the end of its budget; the
# bound proved by then says how much better another answer could be at most.

BUDGET_S = 0.05
MOST_TREE_NODES = 200


@dataclass(frozen=True, slots=True)
class GangPlan:
    """Victims, the node of each worker, the price, and a proven lower bound on the price of any plan."""

    victims: tuple[str, ...]
    nodes: tuple[str, ...]
    price_gpu_s: float
    bound_gpu_s: float


def is_promised(run: Run, now_s: float) -> bool:
    """Whether the run has a guarantee whose hours are not over yet."""
    return run.grade == Grade.GUARANTEED and now_s - run.start_s < 3600.0 * run.job.guarantee_h


def price_gpu_s(run: Run, now_s: float, rules: SchedulerRules) -> float:
    """What the eviction of a run costs, promises aside."""
    restart_s = rules.restart_small_s if run.job.num_gpus <= 8 else rules.restart_large_s
    return run.job.num_gpus * (now_s - run.saved_s + restart_s)


def prices_gpu_s(runs: Sequence[Run], now_s: float, rules: SchedulerRules) -> Floats:
    """Prices in which a broken promise outweighs all others."""
    prices = np.array([price_gpu_s(run, now_s, rules) for run in runs], np.float64)
    is_dear = np.array([is_promised(run, now_s) for run in runs], np.bool_)
    return np.asarray(prices + is_dear * (prices.sum() + 1.0))


def _evictable(state: State, pool: str, rules: SchedulerRules) -> list[Run]:
    """Spot runs of a pool that may be evicted now, by start time."""
    safe_from_s = state.now_s - rules.min_runtime_s
    runs = (run for run in state.runs if run.job.pool == pool and run.job.kind == Kind.SPOT)
    return sorted((run for run in runs if run.start_s <= safe_from_s), key=lambda run: (run.start_s, run.job.id))


def best_victims(state: State, job: Job, rules: SchedulerRules, budget_s: float = inf) -> GangPlan | None:
    """The cheapest evictions that fit a gang of whole GPUs; None if there are none, or none were found."""
    snapshot = from_state(state, job.pool, rules)
    spot = [run for run in _evictable(state, job.pool, rules) if run.job.gpus_per_worker >= 1]
    nodes, asked = snapshot.fleet.nodes, int(job.gpus_per_worker)
    usable = (nodes["healthy"] > 0) & [job.only_nodes is None or name in job.only_nodes for name in snapshot.nodes]
    idle = np.where(usable, np.maximum(nodes["free"] - nodes["reserved"], 0), 0)
    place = {name: number for number, name in enumerate(snapshot.nodes) if usable[number]}
    held = _held(spot, place, len(idle))
    rows = np.flatnonzero(idle + held.sum(axis=1) >= asked)
    columns = np.flatnonzero(held.tocsr()[rows].sum(axis=0))
    prices = prices_gpu_s(spot, state.now_s, rules)
    answer = _solve(idle[rows], held.tocsr()[rows][:, columns], prices[columns], asked, job.num_workers, budget_s)
    if answer is None or answer.x is None:
        return None
    counts, leaves = np.rint(answer.x[: len(rows)]).astype(int), columns[answer.x[len(rows) :] > 0.5]
    seats = tuple(snapshot.nodes[row] for row, count in zip(rows, counts, strict=True) for _ in range(count))
    bound = float(answer.mip_dual_bound) if answer.mip_dual_bound is not None else 0.0
    return GangPlan(tuple(spot[number].job.id for number in leaves), seats, float(prices[leaves].sum()), bound)


def _held(spot: list[Run], place: dict[str, int], num_nodes: int) -> Any:
    """GPUs of each spot job on each node."""
    seats = [
        (place[name], number, run.job.gpus_per_worker)
        for number, run in enumerate(spot)
        for name in run.nodes
        if name in place
    ]
    rows, columns, gpus = zip(*seats, strict=True) if seats else ((), (), ())
    return coo_array((gpus, (rows, columns)), shape=(num_nodes, len(spot)), dtype=np.float64)


def _solve(idle: Floats, held: Any, prices: Floats, asked: int, num_workers: int, budget_s: float) -> Any:
    num_nodes, num_spot = held.shape
    most = np.floor((idle + held.sum(axis=1)) / asked)
    if most.sum() < num_workers:
        return None
    everyone = np.concatenate([np.ones(num_nodes), np.zeros(num_spot)])
    return milp(
        np.concatenate([np.zeros(num_nodes), prices]),
        constraints=[
            LinearConstraint(hstack([asked * eye_array(num_nodes), -held], format="csc"), -np.inf, idle),
            LinearConstraint(everyone[None, :], num_workers, num_workers),
        ],
        integrality=np.ones(num_nodes + num_spot),
        bounds=Bounds(np.zeros(num_nodes + num_spot), np.concatenate([most, np.ones(num_spot)])),
        options={"node_limit": MOST_TREE_NODES, "time_limit": budget_s},
    )
