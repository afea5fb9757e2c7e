"""LERC reproduced: hit ratio and effective hit ratio of the multi-tenant zip against the size of the cache.

Ten tenants load two files of a hundred blocks and zip them on twenty workers. The interleaving of tenants is random,
and the LRU column near 100 % depends on that draw: the spread over many draws is shown with the draw that is compared.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from takeup.caching.model import CachingResult, EngineModel, Workload
from takeup.caching.policies import find_policy
from takeup.caching.report import job_report
from takeup.caching.simulate.compiled.replay import replay
from takeup.caching.traces import generate
from takeup.caching.traces.generators import zip_tenants
from takeup.core.progress import progress
from takeup.core.report import Check, Column, Report, Table
from takeup.core.seeds import Streams
from takeup.papers import Findings, numbers, of_kind, paper_report
from takeup.papers.lrc import disagreements

Results = dict[tuple[str, int], CachingResult]
METRICS = {"hit": "hit_share", "effective": "effective_hit_share"}


def reproduce(*, quiet: bool = False) -> Report:
    """The paper's experiment at every size, checked cell by cell."""
    expected = numbers("lerc")
    setting = expected["setting"]
    with progress("reproduce lerc", 1 + setting["num_draws"], quiet=quiet) as tick:
        results = _run(_zip(setting["seed"]), setting)
        tick()
        spread = _spread(setting, tick)
    of_sizes = [*_cell_checks(expected["cells"], results), *_admission_checks(expected, results)]
    checks = of_kind("simulation", [*of_sizes, *_time_checks(expected, results)])
    whole = _zip(setting["seed"]).working_set_bytes
    found = job_report(list(results.values()), whole, "lerc", {}, setting["seed"])
    tables = (*found.tables, spread, _sensitivity(setting, expected["speedup"]["capacity_percent"]))
    notes = (*disagreements(checks), *setting["notes"])
    return paper_report("lerc", setting["seed"], [Findings(checks, tables, found.series)], notes)


def _zip(seed: int) -> Workload:
    return generate("zip", Streams(seed).stream("caching zip"))


def _run(workload: Workload, setting: Mapping[str, Any]) -> Results:
    return {
        (policy, percent): _replay(policy, workload, percent, setting)
        for percent in setting["capacities_percent"]
        for policy in setting["policies"]
    }


def _replay(policy: str, workload: Workload, percent: int, setting: Mapping[str, Any]) -> CachingResult:
    capacity_bytes = round(workload.working_set_bytes * percent / 100)
    model = EngineModel(
        capacity_bytes, cost_model="all-or-nothing", disk_bytes_per_s=float(setting["disk_bytes_per_s"])
    )
    return replay(find_policy(policy), workload, model)


def _spread(setting: Mapping[str, Any], tick: Any) -> Table:
    """Variation of LRU's ratios with the random interleaving."""
    shares: dict[int, list[tuple[float, float]]] = {percent: [] for percent in setting["capacities_percent"]}
    for draw in range(setting["num_draws"]):
        workload = _zip(1000 + draw)
        for percent, found in shares.items():
            result = _replay("lru", workload, percent, setting)
            found.append((result.hit_share, result.effective_hit_share))
        tick()
    rows = tuple((percent, *_mean_and_deviation(found)) for percent, found in shares.items())
    columns = (Column("cache", "%"), Column("hits"), Column("± hits"), Column("effective"), Column("± effective"))
    return Table(f"LRU over {setting['num_draws']} random interleavings", columns, rows, "mean and standard deviation")


def _sensitivity(setting: Mapping[str, Any], percent: int) -> Table:
    """The time saved for longer and shorter load times."""
    rows = []
    for load_s in setting["other_loads_s"]:
        workload = zip_tenants(Streams(setting["seed"]).stream("caching zip"), load_s=load_s)
        lru, lrc, lerc = (_replay(name, workload, percent, setting).makespan_s for name in ("lru", "lrc", "lerc"))
        rows.append((load_s, 1 - lerc / lru, 1 - lrc / lru, 1 - lerc / lrc))
    columns = (Column("load", "s", 2), Column("LERC over LRU"), Column("LRC over LRU"), Column("LERC over LRC"))
    return Table(f"Time saved at {percent} %, by the seconds of a load", columns, tuple(rows), "the checks use 0.02 s")


def _mean_and_deviation(shares: list[tuple[float, float]]) -> tuple[float, float, float, float]:
    means, deviations = np.mean(shares, axis=0), np.std(shares, axis=0)
    return float(means[0]), float(deviations[0]), float(means[1]), float(deviations[1])


def _cell_checks(cells: Mapping[str, Any], results: Results) -> list[Check]:
    percents = sorted({percent for _, percent in results})
    return [
        Check.near(
            f"{policy} at {percent} %, {metric}",
            getattr(results[policy, percent], attribute),
            cells[policy][row][column],
            cells["tolerance"],
            source=cells["source"],
        )
        for policy in dict.fromkeys(policy for policy, _ in results)
        for row, percent in enumerate(percents)
        for column, (metric, attribute) in enumerate(METRICS.items())
    ]


def _admission_checks(expected: Mapping[str, Any], results: Results) -> list[Check]:
    percents = sorted({percent for _, percent in results})
    gaps = [
        abs(getattr(results["lerc+admission", percent], attribute) - getattr(results["belady", percent], attribute))
        for percent in percents
        for attribute in METRICS.values()
    ]
    bar = expected["admission"]
    name = "largest gap of lerc+admission to belady"
    return [Check.at_most(name, max(gaps), bar["gap_to_belady"], source=bar["source"])]


def _time_checks(expected: Mapping[str, Any], results: Results) -> list[Check]:
    paper, times = expected["speedup"], expected["times"]
    lru, lrc, lerc = (results[policy, paper["capacity_percent"]].makespan_s for policy in ("lru", "lrc", "lerc"))
    chosen = "how long a load takes is not known, and was chosen with this number in view"
    why = "not tuned to these numbers, which could not be checked against the paper's text"
    rows = (
        ("LERC over LRU", 1 - lerc / lru, paper["over_lru_share"], paper, chosen),
        ("LRC over LRU", 1 - lrc / lru, times["lrc_over_lru_share"], times, why),
        ("LERC over LRC", 1 - lerc / lrc, times["lerc_over_lrc_share"], times, why),
    )
    return [
        Check.near(f"time saved, {name}", ours, theirs, part["tolerance"], source=part["source"], why=reason)
        for name, ours, theirs, part, reason in rows
    ]
