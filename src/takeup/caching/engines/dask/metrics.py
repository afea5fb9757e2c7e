"""The counters of a worker for Prometheus: an extra endpoint, `/takeup/metrics`, next to the worker's `/metrics`.

Separate, because Dask's endpoint needs a package that many clusters do not have, and this one is plain text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from distributed import Worker
from tornado.web import RequestHandler

from takeup.caching.engines.dask.counts import DaskCounts

PATH = "/takeup/metrics"
_GAUGES = ("num_workers", "copies_bytes", "num_open_consumers", "num_pinned")
_SERVED = "_takeup_serves_metrics"


def prometheus(counts: DaskCounts) -> str:
    """The counters in Prometheus's text format."""
    lines = []
    for counter in fields(counts):
        is_gauge = counter.name in _GAUGES
        name = f"takeup_caching_dask_{counter.name.removeprefix('num_')}{'' if is_gauge else '_total'}"
        lines.append(f"# TYPE {name} {'gauge' if is_gauge else 'counter'}")
        lines.append(f"{name} {getattr(counts, counter.name)}")
    return "\n".join(lines) + "\n"


def serve_metrics(worker: Worker, counts: Callable[[Worker], DaskCounts]) -> None:
    """Add the endpoint to the worker's web server. It remains after the plug-in is removed, with all counters zero."""
    application: Any = getattr(worker, "http_application", None)
    if application is not None and not hasattr(application, _SERVED):
        setattr(application, _SERVED, True)
        application.add_handlers(".*$", [(PATH, _MetricsHandler, {"text": lambda: prometheus(counts(worker))})])


class _MetricsHandler(RequestHandler):
    def initialize(self, text: Callable[[], str]) -> None:
        self.text = text

    def get(self) -> None:
        self.set_header("Content-Type", "text/plain; version=0.0.4")
        self.write(self.text())
