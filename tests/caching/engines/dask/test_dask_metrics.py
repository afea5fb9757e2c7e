"""The counters as Prometheus reads them: the text, and the page that a worker serves."""

from __future__ import annotations

import re
import time
import urllib.error
import urllib.request
from dataclasses import fields
from typing import Any

import pytest

pytest.importorskip("distributed", reason="needs the package 'distributed': pip install 'takeup[dask]'")

from caching.engines.dask.dask_cluster import blocks, cluster, expected, scan
from takeup.caching.engines.dask import DaskCounts, counters, install, uninstall
from takeup.caching.engines.dask.plugins import PATH, prometheus

LINE = re.compile(r"(takeup_caching_dask_\w+) (\d+)")


def values(text: str) -> dict[str, int]:
    return {name: int(value) for name, value in (LINE.fullmatch(line).groups() for line in samples(text))}  # type: ignore[union-attr]


def samples(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_every_counter_has_a_line_and_a_type() -> None:
    numbers = {field.name: number for number, field in enumerate(fields(DaskCounts))}
    text = prometheus(DaskCounts(**numbers))

    assert sorted(values(text).values()) == sorted(numbers.values())
    assert text.count("# TYPE") == len(numbers)


def test_what_only_grows_is_a_counter_and_what_is_there_now_a_gauge() -> None:
    text = prometheus(DaskCounts(num_hits=7, copies_bytes=11))

    assert "# TYPE takeup_caching_dask_hits_total counter\ntakeup_caching_dask_hits_total 7\n" in text
    assert "# TYPE takeup_caching_dask_copies_bytes gauge\ntakeup_caching_dask_copies_bytes 11\n" in text


@pytest.mark.engine
def test_every_worker_serves_its_counters_while_the_plug_in_is_there() -> None:
    with cluster(processes=False) as client:
        pages = [page(info) for info in client.scheduler_info()["workers"].values()]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            read(pages[0])
        install(client, "lrc")
        install(client, "dag")  # the page is there once

        assert scan(client, blocks(client)) == expected()
        counts: DaskCounts = counters(client)
        served = [values(read(url)) for url in pages]
        assert sum(page["takeup_caching_dask_evictions_total"] for page in served) == counts.num_evictions > 0
        assert sum(page["takeup_caching_dask_workers"] for page in served) == 2
        uninstall(client)
        until_s = time.monotonic() + 60
        while set(values(read(pages[0])).values()) != {0}:
            assert time.monotonic() < until_s
            time.sleep(0.05)


def page(worker: dict[str, Any]) -> str:
    host = worker["host"]
    return f"http://{host}:{worker['services']['dashboard']}{PATH}"


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())
