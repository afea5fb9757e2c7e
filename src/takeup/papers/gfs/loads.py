"""Three spot loads: GFS against the mean of four baselines, day by day against FIFO, and in money."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from takeup.cluster.fleet.outcome import Metrics, Outcome
from takeup.cluster.model import Grade, Workload
from takeup.cluster.policies import find_policy
from takeup.cluster.policies.gfs.quota import SpotQuota
from takeup.cluster.report import (
    Prices,
    benefit_of,
    benefit_table,
    classes_table,
    eviction_bars,
    schedulers_table,
    usage_bars,
    wait_bars,
)
from takeup.cluster.simulate import replay
from takeup.cluster.traces import generate
from takeup.core.report import Cell, Check, Column, Table
from takeup.core.seeds import Streams
from takeup.papers.findings import Findings

__all__ = ["Load", "Numbers", "against_baselines", "against_fifo", "benefit", "replayed", "window_s"]

Numbers = Mapping[str, Any]
DAY_S = 86_400.0
TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Load:
    """A spot load: the jobs, and what every scheduler made of them."""

    name: str
    workload: Workload
    outcomes: Mapping[str, Outcome]

    def metrics(self, policy: str) -> Metrics:
        """The window of a scheduler in numbers."""
        return self.outcomes[policy].metrics()


def window_s(expected: Numbers) -> tuple[float, float]:
    """From when to when, in seconds."""
    setting = expected["setting"]
    return setting["num_history_days"] * DAY_S, setting["num_days"] * DAY_S


def replayed(expected: Numbers, name: str, policies: Sequence[str], tick: Callable[[], None]) -> Load:
    """The load of this name under all policies."""
    setting = expected["setting"]
    workload = generate(setting["loads"][name], Streams(setting["seed"]), num_days=setting["num_days"])
    outcomes = {}
    for policy in policies:
        outcomes[policy] = replay(workload, find_policy(policy, SpotQuota()), *window_s(expected))
        tick()
    return Load(name, workload, outcomes)


# Against the baselines ------------------------------------------------------------------------------------------------

QUANTITIES: dict[str, Callable[[Metrics], float]] = {
    "spot eviction rate": lambda metrics: metrics.eviction_rate,
    "spot JQT": lambda metrics: metrics.spot_jqt_s.mean,
    "spot JCT": lambda metrics: metrics.spot_jct_s.mean,
    "high JQT": lambda metrics: metrics.high_jqt_s.mean,
}


def against_baselines(expected: Numbers, loads: Sequence[Load]) -> Findings:
    """How much lower than the mean of the baselines, on average over loads; with every quoted number beside ours."""
    lower = {name: [_lower_percent(expected, load, of) for load in loads] for name, of in QUANTITIES.items()}
    mean = {name: float(np.mean(values)) for name, values in lower.items()}
    abstract, bar = expected["abstract"], expected["high_bar"]
    checks = [
        _paper_at_least("spot eviction rate", mean, abstract["spot_eviction_lower_percent"]),
        _paper_at_least("spot JQT", mean, abstract["spot_jqt_lower_percent"]),
        Check.at_least(
            "high JQT, lower than the baselines' mean", mean["high JQT"], bar["jqt_lower_percent"], unit="%"
        ),
        *(_p99_check(expected, load) for load in loads),
        *_quoted(expected, loads, lower),
    ]
    tables = [_reductions(lower, loads)]
    for load in loads:
        for table in (schedulers_table(list(load.outcomes.values())), classes_table(list(load.outcomes.values()))):
            tables.append(replace(table, title=f"{load.name.capitalize()} load: {table.title.lower()}"))
    outcomes = list(loads[1].outcomes.values())
    charts = (eviction_bars(outcomes), wait_bars(outcomes), usage_bars(outcomes))
    return Findings(tuple(checks), tuple(tables), charts)


def _lower_percent(expected: Numbers, load: Load, of: Callable[[Metrics], float]) -> float:
    mean = float(np.mean([of(load.metrics(name)) for name in expected["setting"]["baselines"]]))
    return 100 * (1 - of(load.metrics("gfs")) / mean) if mean else 0.0


def _paper_at_least(name: str, mean: Mapping[str, float], least: float) -> Check:
    return Check.at_least(f"{name}, lower than the baselines' mean", mean[name], least, unit="%", source="paper")


def _p99_check(expected: Numbers, load: Load) -> Check:
    best = min(load.metrics(name).high_jct_s.p99 for name in expected["setting"]["baselines"])
    above = 100 * (load.metrics("gfs").high_jct_s.p99 / best - 1)
    name = f"{load.name} load, high p99 JCT above the best baseline"
    return Check.at_most(name, above, expected["high_bar"]["p99_jct_percent"], unit="%")


def _reductions(lower: Mapping[str, Sequence[float]], loads: Sequence[Load]) -> Table:
    columns = (Column("quantity"), *(Column(f"{load.name} load", "%", 1) for load in loads), Column("mean", "%", 1))
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (name, *values, float(np.mean(values))) for name, values in lower.items()
    )
    return Table("GFS lower than the mean of the baselines", columns, rows)


def _quoted(expected: Numbers, loads: Sequence[Load], lower: Mapping[str, Sequence[float]]) -> list[Check]:
    """What readers quote of the evaluation, beside ours; other fleets and loads, so nothing follows from it."""
    quoted, production, medium = expected["quoted"], expected["production"], loads[1]
    gfs = medium.metrics("gfs")
    waits_s = [medium.metrics(name).spot_jqt_s.mean for name in expected["setting"]["baselines"]]
    gains = [_allocation_gain(expected, load) for load in loads]
    rows: list[tuple[str, float, float, str]] = [
        (
            "spot JCT, lower than the baselines' mean",
            float(np.mean(lower["spot JCT"])),
            quoted["spot_jct_lower_percent"],
            "%",
        ),
        ("high JQT, least reduction of a load", min(lower["high JQT"]), quoted["high_jqt_lower_percent"][0], "%"),
        ("high JQT, largest reduction of a load", max(lower["high JQT"]), quoted["high_jqt_lower_percent"][1], "%"),
        ("medium load, high p99 JCT", gfs.high_jct_s.p99, quoted["high_p99_jct_s"], "s"),
        ("medium load, spot JQT of gfs", gfs.spot_jqt_s.mean, quoted["medium_spot_jqt_s"], "s"),
        ("medium load, least spot JQT of a baseline", min(waits_s), quoted["medium_baselines_spot_jqt_s"][0], "s"),
        ("medium load, largest spot JQT of a baseline", max(waits_s), quoted["medium_baselines_spot_jqt_s"][1], "s"),
        ("medium load, spot eviction of gfs", 100 * gfs.eviction_rate, quoted["medium_spot_eviction_percent"], "%"),
        (
            "largest spot eviction of a load, beside production",
            max(100 * load.metrics("gfs").eviction_rate for load in loads),
            quoted["production_spot_eviction_percent"],
            "%",
        ),
        (
            "spot eviction, lower than the baselines' mean, beside A100 in production",
            float(np.mean(lower["spot eviction rate"])),
            quoted["production_a100_eviction_lower_percent"],
            "%",
        ),
        (
            "allocation over the baselines' mean, beside A100 in production",
            float(np.mean(gains)),
            production["a100_allocation_percent"],
            "%",
        ),
        (
            "largest gain in allocation of a load, beside A800 in production",
            max(gains),
            production["a800_allocation_percent"],
            "%",
        ),
    ]
    why = "another trace, other loads; shown, not judged"
    return [
        Check.near(name, ours, theirs, 0.1 * theirs, unit=unit, source="unverified", why=why)
        for name, ours, theirs, unit in rows
    ]


def _allocation_gain(expected: Numbers, load: Load) -> float:
    mean = np.mean([load.metrics(name).allocation_rate for name in expected["setting"]["baselines"]])
    return 100 * (load.metrics("gfs").allocation_rate / float(mean) - 1)


# Against FIFO ---------------------------------------------------------------------------------------------------------


def against_fifo(expected: Numbers, loads: Sequence[Load]) -> Findings:
    """Allocation and useful GPU time day by day, and how often guaranteed spot jobs were evicted."""
    most = round(100 * (1 - expected["setting"]["probability"]), 9)
    checks, rows = [], []
    for load in loads:
        allocated, useful = (_daily_gaps(load, name) for name in ("allocation_rate", "useful_rate"))
        kept = load.metrics("gfs").guarantee_kept[Grade.GUARANTEED]
        below = int((allocated < -TINY).sum())
        rows.append((
            load.name, below, len(allocated), float(allocated.min()), float(allocated.mean()),
            float(useful.min()), float(useful.mean()), 100 * (1 - kept),
        ))  # fmt: skip
        days = expected["fifo_bar"]["days_below"]
        checks.append(Check.at_most(f"{load.name} load, days with less allocation than FIFO", float(below), days))
        checks.append(
            Check.at_most(f"{load.name} load, eviction of guaranteed spot jobs", 100 * (1 - kept), most, unit="%")
        )
    gaps = ("least allocation", "mean allocation", "least useful", "mean useful")
    columns = (
        Column("load"), Column("days below"), Column("of"), *(Column(name, "pp", 3) for name in gaps),
        Column("guaranteed evicted", "%", 2),
    )  # fmt: skip
    note = "gfs less fifo, by day; fifo has no quota and evicts nobody, so its backlog moves work to later days"
    return Findings(tuple(checks), (Table("Against FIFO", columns, tuple(rows), note),))


def _daily_gaps(load: Load, rate: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    """GFS less FIFO for every day of the window, in percentage points."""
    first, last = (int(edge // DAY_S) for edge in (load.outcomes["gfs"].from_s, load.outcomes["gfs"].to_s))
    gaps = []
    for day in range(first, last):
        ours, theirs = (
            getattr(load.outcomes[name].metrics(from_s=day * DAY_S, to_s=(day + 1) * DAY_S), rate)
            for name in ("gfs", "fifo")
        )
        gaps.append(100 * (ours - theirs))
    return np.array(gaps)


# Money ----------------------------------------------------------------------------------------------------------------


def benefit(expected: Numbers, medium: Load) -> Findings:
    """What a GPU-hour costs if the printed benefit is right, and what GFS brings here at that price."""
    part = expected["production"]
    gained = {
        "A100": part["a100_gpus"] * part["a100_allocation_percent"] / 100 * part["hours_a_month"],
        "A800": part["a800_gpus"] * part["a800_allocation_percent"] / 100 * part["hours_a_month"],
    }
    price = part["month_usd"] / sum(gained.values())
    prices = Prices(dict.fromkeys(medium.workload.pools, price))
    tables, checks = [], []
    for other in ("yarn_cs", "fifo"):
        found = benefit_of(medium.outcomes["gfs"], medium.outcomes[other], prices)
        table = benefit_table(found, expected["setting"]["seed"])
        tables.append(replace(table, title=f"Benefit of gfs over {other}, medium load"))
        interval = found.interval_usd(expected["setting"]["seed"])
        if other == "yarn_cs" and interval is not None:
            name = "medium load, a month of gfs over yarn_cs, low end of the interval"
            checks.append(Check.at_least(name, interval.low, expected["benefit"]["least_usd"], unit="USD"))
    columns = (Column("pool"), Column("gained a month", "GPU-h", 0), Column("price", "USD/GPU-h", 2))
    rows: tuple[tuple[Cell, ...], ...] = tuple((pool, hours, price) for pool, hours in gained.items())
    note = f"GPUs of the public list of nodes times the printed gain; {part['month_usd']} USD a month divided by them"
    return Findings(tuple(checks), (Table("The printed benefit", columns, rows, note), *tables))
