"""The best victims for a gang, with proof: a small integer programme, to see how far the fast way is from the best.

How it works. x[n] workers go to node n; y[j] is 1 if spot job j leaves. A node must hold its workers in what is idle
and what its leaving jobs free; together the nodes hold the gang; the price of those who leave is least. The solver
(HiGHS, in scipy) stops after so many nodes of its search tree, not at a time: the answer is always the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from takeup.cluster.fleet.rules import Rules
from takeup.cluster.model import Grade, Job, Kind, Run, State

__all__ = ["GangPlan", "best_victims", "price_gpu_s"]

Floats = npt.NDArray[np.float64]

MOST_TREE_NODES = 200


@dataclass(frozen=True, slots=True)
class GangPlan:
    """Who leaves, where the workers go, what it costs, and the least that any plan can cost."""

    victims: tuple[str, ...]
    nodes: tuple[str, ...]
    price_gpu_s: float
    bound_gpu_s: float


def price_gpu_s(run: Run, now_s: float, rules: Rules) -> float:
    """What the eviction of a run costs, promises aside."""
    restart_s = rules.restart_small_s if run.job.num_gpus <= 8 else rules.restart_large_s
    lost = run.job.num_gpus * (now_s - run.saved_s + restart_s) + rules.victim_price_gpu_s
    return lost * (1 + rules.repeat_price_share * run.num_evictions)


def best_victims(state: State, job: Job, rules: Rules) -> GangPlan | None:
    """The cheapest way to make room for a gang that asks for whole GPUs; None if there is none, or none was found."""
    nodes = [node for node in state.nodes if node.pool == job.pool and node.healthy]
    runs = [run for run in state.runs if run.job.pool == job.pool]
    spot = [run for run in runs if run.job.kind == Kind.SPOT and run.job.gpus_per_worker >= 1]
    asked, place = int(job.gpus_per_worker), {node.name: number for number, node in enumerate(nodes)}
    held = np.zeros((len(nodes), len(spot)))
    idle = np.array([float(node.num_gpus) for node in nodes])
    for run in runs:
        for name in (name for name in run.nodes if name in place):
            idle[place[name]] -= run.job.gpus_per_worker
    for number, run in enumerate(spot):
        for name in (name for name in run.nodes if name in place):
            held[place[name], number] += run.job.gpus_per_worker
    prices = _prices(spot, state.now_s, rules)
    answer = _solve(np.floor(idle), held, prices, asked, job.num_workers)
    if answer.x is None:
        return None
    workers, leaves = np.rint(answer.x[: len(nodes)]).astype(int), answer.x[len(nodes) :] > 0.5
    seats = tuple(node.name for node, count in zip(nodes, workers, strict=True) for _ in range(count))
    victims = tuple(run.job.id for run, is_victim in zip(spot, leaves, strict=True) if is_victim)
    return GangPlan(victims, seats, float(prices[leaves].sum()), float(answer.mip_dual_bound))


def _prices(spot: list[Run], now_s: float, rules: Rules) -> Floats:
    """Prices in which one broken promise outweighs all jobs without one."""
    plain = np.array([price_gpu_s(run, now_s, rules) for run in spot], np.float64)
    promised = np.array([run.grade == Grade.GUARANTEED for run in spot], np.bool_)
    return np.asarray(plain + promised * (plain.sum() + 1.0), np.float64)


def _solve(idle: Floats, held: Floats, prices: Floats, asked: int, num_workers: int) -> Any:
    num_nodes, num_spot = held.shape
    room = csr_array(np.hstack([asked * np.eye(num_nodes), -held]))
    everyone = np.concatenate([np.ones(num_nodes), np.zeros(num_spot)])
    most = np.floor(np.maximum(0.0, idle + held.sum(axis=1)) / asked)
    return milp(
        np.concatenate([np.zeros(num_nodes), prices]),
        constraints=[
            LinearConstraint(room, -np.inf, np.maximum(idle, 0.0)),
            LinearConstraint(everyone[None, :], num_workers, num_workers),
        ],
        integrality=np.ones(num_nodes + num_spot),
        bounds=Bounds(np.zeros(num_nodes + num_spot), np.concatenate([most, np.ones(num_spot)])),
        options={"node_limit": MOST_TREE_NODES},
    )
