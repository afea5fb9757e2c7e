"""Baselines of the environment for learners: `python -m benchmarks.edge learners [--episodes 100] [--out FOLDER]`.

Plays episodes of `takeup/Offloading-v0` with rules that need no training. A return is the share of a proven bound that
the plan of an episode is worth, so 1 cannot be exceeded; `greedy` and `solver` (the policy `exact`) plan the same
cells.
"""

from __future__ import annotations

import benchmarks.support.one_thread  # noqa: F401  before numpy

# isort: split
from collections.abc import Callable

import numpy as np

from benchmarks.support.dated import options_of, publish, versions
from takeup.core.report import Check, Column, Report, Table
from takeup.edge.gym import Observation, OffloadingEnv, reference
from takeup.edge.policies import find_policy

Rule = Callable[[Observation, np.ndarray, np.random.Generator], int]
WORTH, RUN_S = 0, 2  # columns of `devices` in an observation


def largest(score: Callable[[Observation], np.ndarray]) -> Rule:
    """Accept the device with the largest score of those that can join."""
    return lambda seen, able, _: int(able[np.argmax(score(seen)[able])])


RULES: dict[str, Rule] = {
    "random device": lambda _, able, random: int(random.choice(able)),
    "largest worth": largest(lambda seen: seen["devices"][:, WORTH]),
    "largest worth per run time": largest(lambda seen: seen["devices"][:, WORTH] / seen["devices"][:, RUN_S]),
}


def episode(environment: OffloadingEnv, rule: Rule, seed: int) -> float:
    """The sum of the rewards when the rule chooses until no device can join."""
    seen, info = environment.reset(seed=seed)
    random, total, is_over = np.random.default_rng(seed), 0.0, False
    while not is_over:
        able = np.flatnonzero(info["action_mask"][:-1])
        action = rule(seen, able, random) if len(able) else environment.instance.num_devices
        seen, reward, is_over, _, info = environment.step(np.int64(action))
        total += reward
    return total


def measure(num_episodes: int) -> Report:
    """One row for each rule, and for the policies `greedy` and `exact`."""
    environment = OffloadingEnv()
    returns = {name: [episode(environment, rule, seed) for seed in range(num_episodes)] for name, rule in RULES.items()}
    returns |= {"greedy": [], "solver": [], "bound": [1.0] * num_episodes}
    for seed in range(num_episodes):
        environment.reset(seed=seed)
        returns["greedy"].append(find_policy("greedy").allocate(environment.instance).worth_j / environment.bound_j)
        returns["solver"].append(reference(environment.instance).worth_j / environment.bound_j)
    columns = (Column("rule"), Column("mean return", digits=3), Column("lowest return", digits=3))
    rows = tuple((name, float(np.mean(found)), min(found)) for name, found in returns.items())
    best, solver = max(row[1] for row in rows[:-2]), float(np.mean(returns["solver"]))
    return Report(
        title="Edge: baselines of the environment for learners",
        domain="edge",
        scenario={"command": "python -m benchmarks.edge learners"},
        seed=0,
        tables=(Table("Returns", columns, rows, f"{num_episodes} episodes with seeds from 0"),),
        checks=(Check.at_least("solver, mean return over the best rule", solver - best, 0.0),),
        notes=(f"Versions: {versions(('takeup', 'numpy', 'gymnasium'))}.",),
    )


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--episodes", type=int, default=100, help="how many episodes for each rule")
    options = parser.parse_args()
    return publish(measure(options.episodes), "edge-learners", options)
