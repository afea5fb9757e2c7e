"""What the plug-in counted, read, reported and exported."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from takeup.caching.engines.spark.session import SparkCounts, counts_report, prometheus
from takeup.core.render import to_text
from takeup.errors import BadInput

COUNTS = SparkCounts(
    policy="lerc+admission",
    is_active=True,
    accesses=10,
    hits=8,
    effective_hits=6,
    evictions=4,
    inactive_bytes=2_000_000,
)


def test_counters_come_back_from_what_the_plug_in_wrote() -> None:
    text = json.dumps({"policy": "lrc", "is_active": True, "hits": 3, "accesses": 4, "executors": {"0": {"hits": 3}}})

    counts = SparkCounts.from_json(text)

    assert (counts.policy, counts.hits, counts.hit_share, counts.evictions) == ("lrc", 3, 0.75, 0)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"policy": "lrc"}'])
def test_a_text_that_holds_no_counters_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(BadInput, match="no counters of the Spark plug-in"):
        SparkCounts.from_json(text)


def test_shares_are_of_accesses_and_zero_without_any() -> None:
    assert (COUNTS.hit_share, COUNTS.effective_hit_share) == (0.8, 0.6)
    assert SparkCounts("lru", is_active=False).effective_hit_share == 0


def test_prometheus_gets_one_typed_line_for_every_number() -> None:
    lines = prometheus(COUNTS).splitlines()

    numbers = [field.name for field in fields(COUNTS) if field.name not in {"policy", "is_active"}]
    assert 'takeup_caching_spark_effective_hits_total{policy="lerc+admission"} 6' in lines
    assert 'takeup_caching_spark_inactive_bytes{policy="lerc+admission"} 2000000' in lines
    assert "# TYPE takeup_caching_spark_inactive_bytes gauge" in lines
    assert len(lines) == 2 * len(numbers)


def test_the_report_shows_both_hit_ratios_and_the_evictions() -> None:
    text = to_text(counts_report(COUNTS, "A job"), width=300)

    assert "A job" in text
    assert all(word in text for word in ("lerc+admission", "0.8", "0.6", "evicted"))
