"""GFS reproduced: spot jobs under a forecast quota, against four baselines, plain FIFO, and itself without its parts.

The trace of the paper is not public as a whole. A fleet of its size, 287 nodes of eight A100, is drawn with the
statistics that are published, at three spot loads, and replayed. So ratios between schedulers are compared, not times.
"""

from __future__ import annotations

from takeup.core.progress import progress
from takeup.core.report import Report
from takeup.papers import numbers
from takeup.papers.gfs.forecasts import demand
from takeup.papers.gfs.loads import Load, against_baselines, against_fifo, benefit, replayed
from takeup.papers.gfs.variants import ablations

__all__ = ["TITLE", "reproduce"]

TITLE = "GFS: A Preemption-aware Scheduling Framework for GPU Clusters (ASPLOS 2026)"
NOTES = (
    "the last 24 days of the drawn trace, of which 14 are the window; the paper has five months before a month, and "
    "the full length is in benchmarks/cluster.py",
    "eviction rates are evictions over evictions and kept hours, the form on which the quota feeds; which one the "
    "paper prints is not known, and the tables have all three",
    "two of the baselines stop at the first job that does not fit; with spot jobs waiting for days behind large ones, "
    "their mean is far above what the paper prints, and reductions against it are flattering",
    "forecasts on the measured series of six GPU models are in benchmarks/forecast.py; no row of that trace is here",
)


def reproduce(*, quiet: bool = False) -> Report:
    """All loads, ablations, the forecast and the money, checked."""
    expected = numbers("gfs")
    setting = expected["setting"]
    policies = (*setting["baselines"], "fifo", "gfs")
    loads: list[Load] = []
    with progress("reproduce gfs", len(setting["loads"]) * len(policies) + 3, quiet=quiet) as tick:
        for name in setting["loads"]:
            loads.append(replayed(expected, name, policies, tick))
        parts = [against_baselines(expected, loads), against_fifo(expected, loads)]
        for part in (ablations(expected, loads[1]), demand(expected), benefit(expected, loads[1])):
            parts.append(part)
            tick()
    return Report(
        TITLE,
        "papers",
        {"domain": "papers", "verb": "reproduce", "paper": "gfs"},
        setting["seed"],
        tuple(table for part in parts for table in part.tables),
        tuple(series for part in parts for series in part.series),
        tuple(check for part in parts for check in part.checks),
        NOTES,
    )
