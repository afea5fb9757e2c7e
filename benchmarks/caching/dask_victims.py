"""How long a choice of the value to spill takes a Dask worker that holds 100,000 of them, in one process."""

from __future__ import annotations

import time
from collections.abc import Hashable

import numpy as np

from takeup.caching.engines.dask.spill_guide import SpillGuide, SpillOptions
from takeup.caching.policies import find_policy
from takeup.core.report import Check, Column, Table

NUM_VALUES, NUM_CHOICES, SIZE_BYTES = 100_000, 20_000, 1_000_000
VICTIM_US = 50.0
POLICIES = ("lrc", "lerc", "mrd", "furthest_next_use", "dag")


def victim_choices() -> tuple[Table, Check]:
    """The time of a choice by policy, and the bar."""
    rows = tuple((policy, *np.percentile(choose_often(policy), (50, 99)).tolist()) for policy in POLICIES)
    columns = (Column("policy"), Column("median", "us", 2), Column("99th percentile", "us", 2))
    most_us = max(float(row[2]) for row in rows)
    note = "Each choice includes the new ranks of the values that were read, made or announced since the last one."
    check = Check.at_most("a choice among 100,000 values, 99th percentile", most_us, VICTIM_US)
    return Table("Choice of victims among 100,000 values", columns, rows, note), check


def choose_often(policy: str) -> list[float]:
    """Microseconds of each choice, while values come, are read, and lose readers."""
    rng = np.random.default_rng(0)
    guide = SpillGuide(find_policy(policy), NUM_VALUES * SIZE_BYTES, SpillOptions())
    for key in range(NUM_VALUES):
        add(guide, key, float(rng.integers(NUM_VALUES)))
    guide.order.victim()  # the first one ranks them all
    took_us = []
    for step in range(NUM_CHOICES):
        guide.closed(("reader", int(rng.integers(NUM_VALUES))))
        began_ns = time.thread_time_ns()
        victim = guide.order.victim()
        took_us.append((time.thread_time_ns() - began_ns) / 1000)
        assert victim is not None
        guide.evicted(victim)
        guide.deleted(victim)
        add(guide, NUM_VALUES + step, float(step + rng.integers(NUM_VALUES)))
    return took_us


def add(guide: SpillGuide, key: Hashable, position: float) -> None:
    """A value with one reader."""
    guide.opened(("reader", key), position, position // 1000, (key,))
    guide.stored(key, SIZE_BYTES, is_new=True)
