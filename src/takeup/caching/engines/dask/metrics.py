"""The counters of a worker for Prometheus: one more page, `/takeup/metrics`, beside the worker's own `/metrics`.

A page of its own, because Dask's needs a package that many clusters do not have, and this one is only text.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from distributed import Worker
from tornado.web import RequestHandler

from takeup.caching.engines.dask.counts import Counters

__all__ = ["PATH", "prometheus", "serve"]

PATH = "/takeup/metrics"
_GAUGES = ("num_workers", "copies_bytes", "num_open_consumers", "num_pinned")
_SERVED = "_takeup_serves_metrics"


def prometheus(counts: Counters) -> str:
    """The counters in Prometheus's text format."""
    lines = []
    for field in fields(counts):
        is_gauge = field.name in _GAUGES
        name = f"takeup_caching_dask_{field.name.removeprefix('num_')}{'' if is_gauge else '_total'}"
        lines.append(f"# TYPE {name} {'gauge' if is_gauge else 'counter'}")
        lines.append(f"{name} {getattr(counts, field.name)}")
    return "\n".join(lines) + "\n"


def serve(worker: Worker, counts: Callable[[Worker], Counters]) -> None:
    """Add the page to the worker's web server. It stays when the plug-in goes, and then says that nobody works here."""
    application: Any = getattr(worker, "http_application", None)
    if application is not None and not hasattr(application, _SERVED):
        setattr(application, _SERVED, True)
        application.add_handlers(".*$", [(PATH, _Page, {"text": lambda: prometheus(counts(worker))})])


class _Page(RequestHandler):
    def initialize(self, text: Callable[[], str]) -> None:
        self.text = text

    def get(self) -> None:
        self.set_header("Content-Type", "text/plain; version=0.0.4")
        self.write(self.text())
