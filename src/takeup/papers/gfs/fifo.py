"""Against plain FIFO and the best stock system: useful GPU time, waiting, lost work, and how often promises broke."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import sqrt

import numpy as np

from takeup.cluster.policies import find_policy
from takeup.cluster.policies.gfs import at_price
from takeup.cluster.quota.allocator import SpotQuota
from takeup.cluster.scheduling.outcome import Metrics
from takeup.core.arrays import Floats
from takeup.core.report import Cell, Check, Column, Table
from takeup.papers import Findings, Numbers
from takeup.papers.gfs.baselines import STOCK, SpotLoad, published_baselines

COMPARED = ("fifo", "gfs", "gfs_notice", "kube")
SAVES, HOUR_S = "gfs_notice", 3600.0
NORMAL_95 = 1.96
NOTE = (
    "useful: percentage points over FIFO; fifo has no quota, evicts no job and passes over jobs that do not fit; jobs "
    "of gfs_notice save their work when told, 60 s before they must leave, all others have hourly checkpoints"
)


def against_fifo(expected: Numbers, draws: Sequence[SpotLoad], tick: Callable[[], None]) -> Findings:
    """Useful GPU time, waiting and promises on all draws; and the frontier against every baseline on those shown."""
    names = dict.fromkeys(load.name for load in draws)
    checks = [
        check for name in names for check in _load_checks(expected, name, [it for it in draws if it.name == name])
    ]
    shown = [load for load in draws if load.seed == expected["setting"]["seed"]]
    frontiers = [priced(expected, load, tick) for load in shown]
    checks += [undercut(expected, *each) for each in zip(shown, frontiers, strict=True)]
    checks += frontier_checks(expected, shown[-1], frontiers[-1])
    tables = (_frontier_table(*each) for each in zip(shown, frontiers, strict=True))
    return Findings(tuple(checks), (_draws_table(draws), *tables))


def useful_gains_pp(draws: Sequence[SpotLoad], policy: str) -> Floats:
    """Useful GPU time of a policy less that of FIFO, draw by draw, in percentage points."""
    return np.array([100 * (it.metrics(policy).useful_rate - it.metrics("fifo").useful_rate) for it in draws])


def _load_checks(expected: Numbers, name: str, draws: Sequence[SpotLoad]) -> list[Check]:
    bar, gains = expected["fifo_bar"], useful_gains_pp(draws, SAVES)
    error = float(gains.std(ddof=1)) / sqrt(len(gains)) if len(gains) > 1 else 0.0
    interval = f"{gains.mean() - NORMAL_95 * error:.3f} to {gains.mean() + NORMAL_95 * error:.3f} pp with 95 %"
    waits_s = {policy: max(it.metrics(policy).high_jqt_s.p95 for it in draws) for policy in (SAVES, "fifo")}
    broken = max(100 * it.outcomes["gfs"].broken().high for it in draws)
    where, most = f"{name} load, jobs that save", round(100 * (1 - expected["setting"]["probability"]), 9)
    return [
        Check.at_least(
            f"{where}, useful GPU time over FIFO's, mean", float(gains.mean()), bar["useful_gain_pp"], unit="pp",
            why=f"{interval}, {len(gains)} draws",
        ),
        Check.at_least(f"{where}, the same, worst draw", float(gains.min()), bar["worst_window_pp"], unit="pp"),
        Check.at_most(
            f"{where}, high-priority p95 JQT, worst draw", waits_s[SAVES], bar["high_p95_s"], unit="s",
            why=f"under FIFO {waits_s['fifo']:.0f} s",
        ),
        Check.at_most(f"{name} load, promises broken, 95 % bound, worst seed", broken, most, unit="%"),
    ]  # fmt: skip


def _draws_table(draws: Sequence[SpotLoad]) -> Table:
    columns = (
        Column("load"), Column("seed"), Column("policy"), Column("allocation", "pp", 3), Column("useful", "pp", 3),
        Column("high JQT", "s", 0), Column("high JQT p95", "s", 0), Column("spot JQT", "s", 0), Column("evictions"),
        Column("lost", "GPU-h", 0), Column("spot time promised", "%", 1), Column("promises broken", "%", 2),
    )  # fmt: skip
    rows = tuple(_draw_row(load, policy) for load in draws for policy in COMPARED)
    return Table("Against FIFO", columns, rows, NOTE)


def _draw_row(load: SpotLoad, policy: str) -> tuple[Cell, ...]:
    ours, fifo = load.metrics(policy), load.metrics("fifo")
    gains = (100 * (getattr(ours, rate) - getattr(fifo, rate)) for rate in ("allocation_rate", "useful_rate"))
    return (load.name, load.seed, policy, *gains, *_costs(ours), 100 * (1 - ours.promises_kept))


def _costs(found: Metrics) -> tuple[Cell, ...]:
    return (
        found.high_jqt_s.mean, found.high_jqt_s.p95, found.spot_jqt_s.mean, found.num_evictions,
        found.lost_gpu_s / HOUR_S, 100 * found.promised_share,
    )  # fmt: skip


def priced(expected: Numbers, load: SpotLoad, tick: Callable[[], None]) -> dict[float, Metrics]:
    """GFS with hourly checkpoints on one draw, at each price of waiting."""
    found = {}
    for price in expected["frontier"]["prices"]:
        scheduler = find_policy("gfs", SpotQuota(make_forecast=load.warm_start))
        found[price] = load.replay(expected, replace(scheduler, rules=at_price(scheduler.rules, price))).metrics()
        tick()
    return found


def undercut(expected: Numbers, load: SpotLoad, frontier: dict[float, Metrics]) -> Check:
    """How many baselines are better than every price: in waiting of either kind of jobs, or in work lost.

    The best figures of different baselines belong to no system: one that starts hardly any spot job evicts none.
    """
    others = ("fifo", *expected["setting"]["baselines"], *published_baselines(expected), *STOCK)
    better = [name for name in others if not any(_is_no_worse(it, load.metrics(name)) for it in frontier.values())]
    name = f"{load.name} load, baselines whose waits and work lost no price of gfs matches at once"
    return Check.at_most(name, len(better), 0, why=f"of {len(others)}: {', '.join(better) or 'none'}")


def _is_no_worse(ours: Metrics, theirs: Metrics) -> bool:
    waits = (ours.high_jqt_s.mean <= theirs.high_jqt_s.mean, ours.spot_jqt_s.mean <= theirs.spot_jqt_s.mean)
    return all(waits) and ours.lost_gpu_s <= theirs.lost_gpu_s


def frontier_checks(expected: Numbers, load: SpotLoad, frontier: dict[float, Metrics]) -> list[Check]:
    """Work lost where high-priority jobs wait no longer than under the best stock system; at price 0 FIFO."""
    bar, fifo = expected["frontier"], load.metrics("fifo")
    stock = min(STOCK, key=lambda name: load.metrics(name).lost_gpu_s)
    theirs = load.metrics(stock)
    equal = [it for it in frontier.values() if it.high_jqt_s.mean <= theirs.high_jqt_s.mean]
    ours = min(equal or frontier.values(), key=lambda it: it.lost_gpu_s if equal else it.high_jqt_s.mean)
    lower = 100 * (1 - ours.lost_gpu_s / theirs.lost_gpu_s) if theirs.lost_gpu_s and equal else 0.0
    apart = 100 * abs(frontier[0.0].useful_rate - fifo.useful_rate)
    why = (
        f"{theirs.lost_gpu_s / HOUR_S:.0f} GPU-h under {stock}, high-priority jobs wait {theirs.high_jqt_s.mean:.0f} s"
    )
    name = f"{load.name} load, at no longer high-priority JQT than the best stock system"
    return [
        Check.at_least(f"{name}, work lost, lower", lower, bar["lost_lower_percent"], unit="%", why=why),
        Check.at_most(f"{name}, evictions", ours.num_evictions, theirs.num_evictions),
        Check.at_most(f"{name}, spot JQT", ours.spot_jqt_s.mean, theirs.spot_jqt_s.mean, unit="s"),
        Check.at_most(f"{load.name} load, useful GPU time off FIFO's at price 0", apart, bar["at_zero_pp"], unit="pp"),
    ]


def _frontier_table(load: SpotLoad, frontier: dict[float, Metrics]) -> Table:
    columns = (
        Column("policy"), Column("useful", "%", 3), Column("high JQT", "s", 0), Column("high JQT p95", "s", 0),
        Column("spot JQT", "s", 0), Column("evictions"), Column("lost", "GPU-h", 0), Column("promised", "%", 1),
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = [(f"gfs at {price:g}", *_frontier_row(it)) for price, it in frontier.items()]
    rows += [(name, *_frontier_row(load.metrics(name))) for name in ("fifo", *STOCK)]
    note = "a price is in spot GPU-hours for an hour of waiting of a high-priority GPU; hourly checkpoints"
    return Table(f"Prices of waiting, {load.name} load", columns, tuple(rows), note)


def _frontier_row(found: Metrics) -> tuple[Cell, ...]:
    return (100 * found.useful_rate, *_costs(found))
