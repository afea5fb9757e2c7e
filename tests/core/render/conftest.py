"""A small report that holds one of everything, and a hostile one."""

from __future__ import annotations

import pytest

from takeup.core.report import Cell, Check, Column, Report, Series, Table

HOSTILE = '</script><b onload="x">|*_`[a](b)\' & \x1b[31mred\x07\nnext\ud800 [bold]'


@pytest.fixture(scope="session")
def small_report() -> Report:
    rows: tuple[dict[str, Cell], ...] = tuple(
        {"policy": policy, "size": size, "run time": time_s}
        for policy, size, time_s in (("lru", 20, 9.0), ("lru", 40, 7.5), ("lrc", 20, 8.0), ("lrc", 40, 6.25))
    )
    return Report(
        title="LRC against LRU",
        domain="caching",
        scenario={"policies": ["lru", "lrc"], "capacity_bytes": 40},
        seed=7,
        tables=(
            Table(
                "Run time",
                (Column("policy"), Column("time", "s", 1), Column("exact")),
                (("lru", 9.0, True), ("lrc", None, False)),
                note="Simulated.",
            ),
        ),
        series=(Series("Run time by size", "size", "run time", rows, colour="policy", x_unit="%", y_unit="s"),),
        checks=(
            Check.near("saving", 0.11, 0.1, 0.02, unit="share"),
            Check.at_least("events", 9e5, 1e6, unit="1/s", why="a slow machine"),
            Check.near("folklore", 3.0, 5.0, 1.0, source="unverified"),
        ),
        notes=("Times are simulated.",),
        version="0.1.0",
        created="2030-01-02T03:04:05Z",
        machine="2 cores",
    )


@pytest.fixture(scope="session")
def hostile_report() -> Report:
    row: dict[str, Cell] = {HOSTILE: 1, "y": 2, "group": HOSTILE, "part": HOSTILE}
    return Report(
        title=HOSTILE,
        domain=HOSTILE,
        scenario={HOSTILE: HOSTILE},
        seed=1,
        tables=(Table(HOSTILE, (Column(HOSTILE, HOSTILE),), ((HOSTILE,),), HOSTILE),),
        series=(Series(HOSTILE, HOSTILE, "y", (row,), "group", "part", HOSTILE, HOSTILE, note=HOSTILE),),
        checks=(Check(HOSTILE, HOSTILE, HOSTILE, HOSTILE, False, "paper", None, HOSTILE),),
        notes=(HOSTILE,),
        version=HOSTILE,
        created=HOSTILE,
        machine=HOSTILE,
    )
