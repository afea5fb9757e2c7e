"""Spot loads drawn by seed and replayed, and GFS against the four baselines of the paper, in both forms.

All windows of a load begin from the same state: FIFO serves until then, so that no scheduler has worked ahead.
As evaluated by the paper, two of the baselines stop at the first job that does not fit, and a mean over them is
easily beaten. As their own papers describe them, they all backfill.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

import numpy as np

from takeup.cluster.experiment.scenario import select_jobs
from takeup.cluster.model import Grade, Kind, Workload
from takeup.cluster.policies import POLICIES, find_policy
from takeup.cluster.policies.baselines import FIFO
from takeup.cluster.policies.rule_based import RuleBasedScheduler
from takeup.cluster.quota.allocator import HourlyDemand, SpotQuota, forecast_by
from takeup.cluster.report.outcomes import classes_table, eviction_bars, schedulers_table, usage_bars, wait_bars
from takeup.cluster.scheduling.outcome import Metrics, Outcome
from takeup.cluster.simulate import ReplayPrefix
from takeup.cluster.traces import generate
from takeup.core.report import Cell, Check, Column, Table
from takeup.core.seeds import Streams
from takeup.papers import Findings, Numbers, quoted_checks

# Warm start of the forecast: trained once on the hours before a window, for all schedulers compared in it -------------
#
# Until a window begins FIFO serves, regardless of the scheduler that follows, so all of them see the same demand up to
# then. Training on these hours again for every scheduler would be most of the work of a reproduction.

DEMAND_STEP_S = 3600.0


class WarmStart:
    """Makes forecasts of the only pool of a draw, each with everything learned so far."""

    def __init__(self) -> None:
        self._forecast = forecast_by()()

    def learn(self, outcome: Outcome) -> None:
        """Learn the hours before the window of a replay that are not known yet."""
        known, end = self._forecast.num_hours_seen, int(outcome.from_s // DEMAND_STEP_S)
        if known < end:
            self._forecast.learn(outcome.demand_gpus[0, known:end], float(outcome.capacity_gpus[0]))

    def __call__(self) -> HourlyDemand:
        return deepcopy(self._forecast)


DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class SpotLoad:
    """A spot load: the jobs drawn by a seed, the outcome of every scheduler, and forecasts trained before the window.

    `begun` holds the state when a window begins, which is the same for all schedulers.
    """

    name: str
    seed: int
    workload: Workload
    outcomes: Mapping[str, Outcome]
    warm_start: WarmStart = field(default_factory=WarmStart)
    begun: dict[tuple[float, float], ReplayPrefix] = field(default_factory=dict)

    def metrics(self, policy: str) -> Metrics:
        return self.outcomes[policy].metrics()

    def replay(self, expected: Numbers, scheduler: RuleBasedScheduler) -> Outcome:
        """Replay the window under a scheduler, from the common initial state."""
        window = window_s(expected)
        if window not in self.begun:
            self.begun[window] = begin_window(expected, self.workload)
        return self.begun[window].replay(scheduler)


def window_s(expected: Numbers) -> tuple[float, float]:
    """Begin and end of the window, in seconds."""
    setting = expected["setting"]
    return setting["num_history_days"] * DAY_S, setting["num_days"] * DAY_S


def begin_window(expected: Numbers, workload: Workload) -> ReplayPrefix:
    """Replay jobs up to the window under FIFO, so that no scheduler has worked ahead."""
    return ReplayPrefix(workload, *window_s(expected), before=FIFO)


def draw_workload(expected: Numbers, name: str, seed: int) -> Workload:
    """The jobs that a seed draws at the load of this name."""
    setting = expected["setting"]
    return generate(setting["loads"][name], Streams(seed), num_days=setting["num_days"])


def replay_load(expected: Numbers, name: str, seed: int, policies: Sequence[str], tick: Callable[[], None]) -> SpotLoad:
    """The load of this name under all policies."""
    outcomes: dict[str, Outcome] = {}
    load = SpotLoad(name, seed, draw_workload(expected, name, seed), outcomes)
    for policy in policies:
        source = SpotQuota(make_forecast=load.warm_start)
        outcomes[policy] = load.replay(expected, find_policy(policy, source))
        load.warm_start.learn(outcomes[policy])
        tick()
    return load


Quantity = Callable[[Metrics], float]
QUANTITIES: dict[str, Quantity] = {
    "spot eviction rate": lambda metrics: metrics.eviction_rate,
    "spot JQT": lambda metrics: metrics.spot_jqt_s.mean,
    "spot JCT": lambda metrics: metrics.spot_jct_s.mean,
    "high JQT": lambda metrics: metrics.high_jqt_s.mean,
}
STOCK = ("kube", "slurm")


def against_baselines(expected: Numbers, loads: Sequence[SpotLoad]) -> Findings:
    """Reduction relative to the mean of the baselines, averaged over loads; compares every quoted number with ours."""
    names = expected["setting"]["baselines"]
    lower = {
        name: [_reduction_percent(load, names, of(load.metrics("gfs")), of) for load in loads]
        for name, of in QUANTITIES.items()
    }
    mean = {name: float(np.mean(values)) for name, values in lower.items()}
    abstract, bar = expected["abstract"], expected["high_bar"]
    checks = [
        _paper_at_least("spot eviction rate", mean, abstract["spot_eviction_lower_percent"]),
        _paper_at_least("spot JQT", mean, abstract["spot_jqt_lower_percent"]),
        Check.at_least(
            "high JQT, lower than the baselines' mean", mean["high JQT"], bar["jqt_lower_percent"], unit="%"
        ),
        *_quoted_checks(expected, loads, lower),
    ]
    tables = [_reduction_table(lower, loads)]
    for load in loads:
        for table in (schedulers_table(list(load.outcomes.values())), classes_table(list(load.outcomes.values()))):
            tables.append(replace(table, title=f"{load.name.capitalize()} load: {table.title.lower()}"))
    outcomes = list(loads[1].outcomes.values())
    charts = (eviction_bars(outcomes), wait_bars(outcomes), usage_bars(outcomes))
    return Findings(tuple(checks), tuple(tables), charts)


def _reduction_percent(load: SpotLoad, names: Sequence[str], ours: float, of: Quantity) -> float:
    """How far ours lies below the mean of the named schedulers."""
    mean = float(np.mean([of(load.metrics(name)) for name in names]))
    return 100 * (1 - ours / mean) if mean else 0.0


def _paper_at_least(name: str, mean: Mapping[str, float], least: float) -> Check:
    return Check.at_least(f"{name}, lower than the baselines' mean", mean[name], least, unit="%", source="paper")


def _reduction_table(lower: Mapping[str, Sequence[float]], loads: Sequence[SpotLoad]) -> Table:
    columns = (Column("quantity"), *(Column(f"{load.name} load", "%", 1) for load in loads), Column("mean", "%", 1))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *values, float(np.mean(values))) for name, values in lower.items()
    )
    return Table("GFS lower than the mean of the baselines", columns, rows)


def _quoted_checks(expected: Numbers, loads: Sequence[SpotLoad], lower: Mapping[str, Sequence[float]]) -> list[Check]:
    """Commonly quoted numbers of the evaluation and ours; other fleets and loads, so not conclusive."""
    gfs = loads[1].metrics("gfs")
    waits_s = [loads[1].metrics(name).spot_jqt_s.mean for name in expected["setting"]["baselines"]]
    gains = [_allocation_gain(expected, load) for load in loads]
    ours = {
        "spot_jct_lower_percent": float(np.mean(lower["spot JCT"])),
        "least_high_jqt_lower_percent": min(lower["high JQT"]),
        "largest_high_jqt_lower_percent": max(lower["high JQT"]),
        "high_p99_jct_s": gfs.high_jct_s.p99,
        "medium_spot_jqt_s": gfs.spot_jqt_s.mean,
        "least_baseline_spot_jqt_s": min(waits_s),
        "largest_baseline_spot_jqt_s": max(waits_s),
        "medium_spot_eviction_percent": 100 * gfs.eviction_rate,
        "production_spot_eviction_percent": max(100 * load.metrics("gfs").eviction_rate for load in loads),
        "production_a100_eviction_lower_percent": float(np.mean(lower["spot eviction rate"])),
        "a100_allocation_percent": float(np.mean(gains)),
        "a800_allocation_percent": max(gains),
    }
    return quoted_checks(expected["quoted"], ours) + quoted_checks(expected["production"], ours)


def _allocation_gain(expected: Numbers, load: SpotLoad) -> float:
    mean = np.mean([load.metrics(name).allocation_rate for name in expected["setting"]["baselines"]])
    return 100 * (load.metrics("gfs").allocation_rate / float(mean) - 1)


# Both forms of the baselines: as the paper evaluated them, and as their own papers describe them ----------------------
#
# As evaluated, two of the four stop at the first job that does not fit, and a mean over them is easily beaten. As
# published they all backfill. Spot jobs without a guarantee may be evicted at any time by definition; so evictions are
# compared for all spot jobs, for guaranteed ones, and for a GFS that has no others. A scheduler that lets fewer jobs
# run evicts fewer, and one that counts short periods has more of them; so evictions per useful GPU time are shown,
# too.

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
                    _reduction_percent(load, names, of_ours(mine), of_theirs)
                    for load, mine in zip(loads, ours, strict=True)
                ]
                rows.append((policy, form, quantity, *values, float(np.mean(values))))
        waits = [
            _reduction_percent(load, names, floor, QUANTITIES["high JQT"])
            for load, floor in zip(loads, floors, strict=True)
        ]
        rows.append((HIGH_PRIORITY_ONLY, form, "high JQT", *waits, float(np.mean(waits))))
    shares = (Column(f"{load.name} load", "%", 1) for load in loads)
    columns = (Column("scheduler"), Column("baselines"), Column("quantity"), *shares, Column("mean", "%", 1))
    note = (
        "lower than the mean of the four baselines; gfs_promised runs spot jobs inside the quota or not at all; "
        f"{HIGH_PRIORITY_ONLY}: without any spot job they wait for each other only, which is the least waiting possible"
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
    note = "useful: GPU time of spot runs whose work is never done again, without restart overhead"
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
    guaranteed = {"promises broken, against spot eviction rate": (_broken_share, rate)} if policy == "gfs" else {}
    return {name: (of, of) for name, of in QUANTITIES.items()} | guaranteed


def _broken_share(metrics: Metrics) -> float:
    return 1 - metrics.promises_kept


def _high_priority_only_jqt_s(expected: Numbers, load: SpotLoad) -> float:
    """Waiting time of high-priority jobs if there are no others."""
    workload = select_jobs(load.workload, load.workload.job_kind == Kind.HIGH)
    return begin_window(expected, workload).replay(find_policy("gfs", SpotQuota())).metrics().high_jqt_s.mean
