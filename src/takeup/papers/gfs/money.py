"""The printed benefit in GPU-hours and dollars, and the benefit of GFS here at the same price."""

from __future__ import annotations

from dataclasses import replace

from takeup.cluster.report import GpuPrices, benefit_of, benefit_table
from takeup.core.report import Cell, Check, Column, Table
from takeup.papers.findings import Findings
from takeup.papers.gfs.loads import Numbers, SpotLoad


def monetary_benefit(expected: Numbers, medium: SpotLoad) -> Findings:
    """The price of a GPU-hour implied by the printed benefit, and the benefit of GFS here at that price."""
    part = expected["production"]
    gained = {
        "A100": part["a100_gpus"] * part["a100_allocation_percent"] / 100 * part["hours_a_month"],
        "A800": part["a800_gpus"] * part["a800_allocation_percent"] / 100 * part["hours_a_month"],
    }
    price = part["month_usd"] / sum(gained.values())
    prices = GpuPrices(dict.fromkeys(medium.workload.pools, price))
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
