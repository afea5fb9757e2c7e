"""Both forms of the baselines: as the paper evaluated them, and as their own papers describe them.

As evaluated, two of the four stop at the first job that does not fit, and a mean over them is easily beaten. As
published they all let others pass. Spot jobs without a promise may be evicted at any time, that is what they are; so
evictions are compared for all spot jobs, for guaranteed ones, and for a GFS that has no others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from takeup.cluster.experiment.workloads import only
from takeup.cluster.fleet.outcome import Metrics
from takeup.cluster.model import Grade, Kind
from takeup.cluster.policies import find_policy
from takeup.cluster.policies.gfs.quota import SpotQuota
from takeup.cluster.simulate import replay
from takeup.core.report import Cell, Column, Table
from takeup.papers.gfs.loads import QUANTITIES, Load, Numbers, window_s

__all__ = ["both_forms", "published"]

Quantity = Callable[[Metrics], float]
ALONE = "high-priority jobs alone"


def published(expected: Numbers) -> tuple[str, ...]:
    """The baselines as their own papers describe them."""
    return tuple(f"{name}_published" for name in expected["setting"]["baselines"])


def both_forms(expected: Numbers, loads: Sequence[Load]) -> Table:
    """How much lower GFS is than the mean of the baselines in each form, and how much lower anybody could be."""
    forms = {"as evaluated": tuple(expected["setting"]["baselines"]), "as published": published(expected)}
    floors = [_alone(expected, load) for load in loads]
    rows: list[tuple[Cell, ...]] = []
    for form, names in forms.items():
        for policy in ("gfs", "gfs_promised"):
            ours = [load.metrics(policy) for load in loads]
            for quantity, (of_ours, of_theirs) in _compared(policy).items():
                values = [_lower(load, names, of_ours(mine), of_theirs) for load, mine in zip(loads, ours, strict=True)]
                rows.append((policy, form, quantity, *values, float(np.mean(values))))
        waits = [_lower(load, names, floor, QUANTITIES["high JQT"]) for load, floor in zip(loads, floors, strict=True)]
        rows.append((ALONE, form, "high JQT", *waits, float(np.mean(waits))))
    shares = (Column(f"{load.name} load", "%", 1) for load in loads)
    columns = (Column("scheduler"), Column("baselines"), Column("quantity"), *shares, Column("mean", "%", 1))
    note = (
        "lower than the mean of the four baselines; gfs_promised runs spot jobs inside the quota or not at all; "
        f"{ALONE}: without any spot job they wait for each other only, and nobody can wait much less"
    )
    return Table("Both forms of the baselines", columns, tuple(rows), note)


def _compared(policy: str) -> dict[str, tuple[Quantity, Quantity]]:
    """What is compared, ours and theirs; baselines have one grade of spot jobs."""
    rate = QUANTITIES["spot eviction rate"]
    guaranteed = {"guaranteed spot eviction rate": (_broken, rate)} if policy == "gfs" else {}
    return {name: (of, of) for name, of in QUANTITIES.items()} | guaranteed


def _broken(metrics: Metrics) -> float:
    return 1 - metrics.guarantee_kept[Grade.GUARANTEED]


def _lower(load: Load, names: Sequence[str], ours: float, of_theirs: Quantity) -> float:
    mean = float(np.mean([of_theirs(load.metrics(name)) for name in names]))
    return 100 * (1 - ours / mean) if mean else 0.0


def _alone(expected: Numbers, load: Load) -> float:
    """How long high-priority jobs wait if there are no others."""
    workload = only(load.workload, load.workload.job_kind == Kind.HIGH)
    return replay(workload, find_policy("gfs", SpotQuota()), *window_s(expected)).metrics().high_jqt_s.mean
