"""Passes as if the machine had been equally fast in all of them.

Within the passes of one application, the logarithm of its CPU time goes with that of the pace along a line; its slope
is fitted to all applications of a workload together. Stock Spark and policies are corrected alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from benchmarks.caching.spark_workloads.application import Pass
from benchmarks.caching.spark_workloads.rounds import Rounds
from takeup.core.arrays import Floats

FIGURES = ("task_cpu_s", "executor_cpu_s", "wall_s")
STEEPEST = 3.0


def at_one_pace(results: Mapping[str, Rounds]) -> dict[str, Rounds]:
    """The same rounds at their mean pace; as they are, if it is not known of all."""
    paces = [one.pace_us for rounds in results.values() for one in rounds.passes.values()]
    if not paces or min(paces) <= 0:
        return dict(results)
    slopes = {name: slope(results, name) for name in FIGURES}
    middle_us = float(np.exp(np.mean(np.log(paces))))
    return {
        policy: replace(
            rounds, passes={number: corrected(one, slopes, middle_us) for number, one in rounds.passes.items()}
        )
        for policy, rounds in results.items()
    }


def slope(results: Mapping[str, Rounds], name: str) -> float:
    """By how many percent a figure grows when the piece of work takes one percent more."""
    paces = np.concatenate([_centred(rounds, "pace_us") for rounds in results.values()])
    figures = np.concatenate([_centred(rounds, name) for rounds in results.values()])
    spread = float(paces @ paces)
    return float(np.clip(paces @ figures / spread, 0.0, STEEPEST)) if spread > 0 else 0.0


def corrected(one: Pass, slopes: Mapping[str, float], middle_us: float) -> Pass:
    """A pass at another pace."""
    faster = middle_us / one.pace_us
    return replace(one, **{name: getattr(one, name) * faster**power for name, power in slopes.items()})


def _centred(rounds: Rounds, name: str) -> Floats:
    logs = np.log([getattr(one, name) for one in rounds.passes.values()])
    return np.asarray(logs - logs.mean())
