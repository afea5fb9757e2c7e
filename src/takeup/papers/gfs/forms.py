"""Both forms of the baselines: as the paper evaluated them, and as their own papers describe them.

As evaluated, two of the four stop at the first job that does not fit, and a mean over them is easily beaten. As
published they all backfill. Spot jobs without a guarantee may be evicted at any time by definition; so evictions are
compared for all spot jobs, for guaranteed ones, and for a GFS that has no others. A scheduler that lets fewer jobs run
evicts fewer, and one that counts short periods has more of them; so evictions per useful GPU time are shown, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from takeup.cluster.experiment.workloads import select_jobs
from takeup.cluster.fleet.outcome import Metrics, Outcome
from takeup.cluster.model import Grade, Kind
from takeup.cluster.policies import POLICIES, find_policy
from takeup.cluster.policies.gfs.quota import SpotQuota
from takeup.core.report import Cell, Column, Table
from takeup.papers.gfs.loads import QUANTITIES, Numbers, SpotLoad, begin_window

Quantity = Callable[[Metrics], float]
HIGH_PRIORITY_ONLY = "high-priority jobs alone"
HOUR_S, TINY = 3600.0, 1e-9


def published_baselines(expected: Numbers) -> tuple[str, ...]:
    """The baselines as their own papers describe them."""
    return tuple(f"{name}_published" for name in expected["setting"]["baselines"])


def baseline_forms_table(expected: Numbers, loads: Sequence[SpotLoad]) -> Table:
    """Reduction of GFS relative to the mean of the baselines in each form, and with no spot jobs as a limit."""
    forms = {"as evaluated": tuple(expected["setting"]["baselines"]), "as published": published_baselines(expected)}
    floors = [_high_priority_only_jqt_s(expected, load) for load in loads]
    rows: list[tuple[Cell, ...]] = []
    for form, names in forms.items():
        for policy in ("gfs", "gfs_promised"):
            ours = [load.metrics(policy) for load in loads]
            for quantity, (of_ours, of_theirs) in _compared_quantities(policy).items():
                values = [
                    _form_reduction_percent(load, names, of_ours(mine), of_theirs)
                    for load, mine in zip(loads, ours, strict=True)
                ]
                rows.append((policy, form, quantity, *values, float(np.mean(values))))
        waits = [
            _form_reduction_percent(load, names, floor, QUANTITIES["high JQT"])
            for load, floor in zip(loads, floors, strict=True)
        ]
        rows.append((HIGH_PRIORITY_ONLY, form, "high JQT", *waits, float(np.mean(waits))))
    shares = (Column(f"{load.name} load", "%", 1) for load in loads)
    columns = (Column("scheduler"), Column("baselines"), Column("quantity"), *shares, Column("mean", "%", 1))
    note = (
        "lower than the mean of the four baselines; gfs_promised runs spot jobs inside the quota or not at all; "
        f"{HIGH_PRIORITY_ONLY}: without any spot job they wait for each other only, and nobody can wait much less"
    )
    return Table("Both forms of the baselines", columns, tuple(rows), note)


def spot_work_table(loads: Sequence[SpotLoad]) -> Table:
    """Spot work completed by every scheduler in the window, and the cost of evictions."""
    rows: list[tuple[Cell, ...]] = []
    for load in loads:
        for name, outcome in load.outcomes.items():
            rows.append((load.name, name, *_spot_row(outcome, slice(Grade.GUARANTEED, None))))
            if POLICIES[name].opportunistic:
                rows.append((load.name, f"{name}, with a promise", *_spot_row(outcome, slice(Grade.GUARANTEED, 2))))
    columns = (
        Column("load"), Column("scheduler"), Column("useful", "GPU-h", 0), Column("evictions"),
        Column("evictions for 1,000 useful GPU-h", "", 2), Column("lost for 1,000 useful GPU-h", "GPU-h", 1),
    )  # fmt: skip
    note = "useful: GPU time of spot runs up to their last kept period, of five minutes for chronus, an hour for others"
    return Table("Spot work and its evictions", columns, tuple(rows), note)


def _spot_row(outcome: Outcome, grades: slice) -> tuple[Cell, ...]:
    hours = slice(int(outcome.from_s // HOUR_S), int(outcome.to_s // HOUR_S))
    useful_gpu_h, lost_gpu_h = (
        float(table[:, hours, grades].sum()) / HOUR_S for table in (outcome.useful_gpu_s, outcome.wasted_gpu_s)
    )
    num_evictions = int(outcome.num_broken[:, hours, grades].sum())
    thousands = max(useful_gpu_h / 1000, TINY)
    return useful_gpu_h, num_evictions, num_evictions / thousands, lost_gpu_h / thousands


def _compared_quantities(policy: str) -> dict[str, tuple[Quantity, Quantity]]:
    """The compared values, ours and theirs; baselines have one grade of spot jobs."""
    rate = QUANTITIES["spot eviction rate"]
    guaranteed = {"guaranteed spot eviction rate": (_broken_share, rate)} if policy == "gfs" else {}
    return {name: (of, of) for name, of in QUANTITIES.items()} | guaranteed


def _broken_share(metrics: Metrics) -> float:
    return 1 - metrics.guarantee_kept[Grade.GUARANTEED]


def _form_reduction_percent(load: SpotLoad, names: Sequence[str], ours: float, of_theirs: Quantity) -> float:
    mean = float(np.mean([of_theirs(load.metrics(name)) for name in names]))
    return 100 * (1 - ours / mean) if mean else 0.0


def _high_priority_only_jqt_s(expected: Numbers, load: SpotLoad) -> float:
    """Waiting time of high-priority jobs if there are no others."""
    workload = select_jobs(load.workload, load.workload.job_kind == Kind.HIGH)
    return begin_window(expected, workload).replay(find_policy("gfs", SpotQuota())).metrics().high_jqt_s.mean
