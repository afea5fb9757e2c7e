"""Reports on a watched job: a JSON line or file per finding, Prometheus metrics, and a live status line."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

from takeup.core.files import write_atomically
from takeup.errors import BadInput
from takeup.training.engines.pytorch.watch.session import Finding, WatchSession
from takeup.training.model.call_trace import chrome_trace

LOOPBACK = "127.0.0.1"


def finding_values(finding: Finding) -> dict[str, Any]:
    """A finding as plain values."""
    confirmed = finding.confirmed
    return {
        "number": finding.number,
        "sentence": finding.sentence(),
        **asdict(finding.event),
        "action": finding.action,
        "confirmed": None if confirmed is None else confirmed.sentence(),
    }


def write_finding(folder: Path, finding: Finding, session: WatchSession) -> list[Path]:
    """Atomically write a finding as JSON, and the calls around it as a trace for Perfetto."""
    told, trace = (folder / f"event-{finding.number:03}{end}" for end in (".json", ".trace.json"))
    write_atomically(told, json.dumps(finding_values(finding), indent=2) + "\n")
    write_atomically(trace, json.dumps(chrome_trace(session.watcher.logs(), finding.event)))
    return [told, trace]


def live_line(session: WatchSession) -> str:
    """Current status of the job in one line."""
    times_s = list(session.watcher.iterations_s)[-16:]
    if not times_s:
        return f"{session.gather.num_ranks or 'no'} ranks, {session.gather.num_calls} calls, no iterations yet"
    state = " and ".join(map(str, session.slow)) or "all well"
    num_ranks, number = session.gather.num_ranks, session.watcher.num_iterations
    return f"{num_ranks} ranks, iteration {number}, {1e3 * median(times_s):.1f} ms each, {state}"


# Prometheus -----------------------------------------------------------------------------------------------------------


def metrics_of(session: WatchSession) -> str:
    """Metrics in the Prometheus text format."""
    times_s = list(session.watcher.iterations_s)[-16:]
    values = [
        ("ranks", "gauge", "ranks of the job", session.gather.num_ranks),
        ("iterations_total", "counter", "iterations since the watch began", session.watcher.num_iterations),
        ("iteration_seconds", "gauge", "median of the latest iterations", median(times_s) if times_s else 0.0),
        ("calls_total", "counter", "collective calls and messages noted", session.gather.num_calls),
        ("bad_rows_total", "counter", "rows that made no sense and were skipped", session.gather.num_bad),
        ("events_total", "counter", "slowdowns and recoveries", len(session.findings)),
        ("lost_seconds_total", "counter", "time lost to slowdowns", session.lost_s),
    ]
    lines = []
    for name, kind, what, value in values:
        lines += [f"# HELP takeup_watch_{name} {what}", f"# TYPE takeup_watch_{name} {kind}"]
        lines.append(f"takeup_watch_{name} {value:g}")
    lines += ["# HELP takeup_watch_slow how many times as long it takes", "# TYPE takeup_watch_slow gauge"]
    for suspect in session.slow:
        ranks = ",".join(map(str, suspect.ranks))
        lines.append(f'takeup_watch_slow{{kind="{suspect.kind}",ranks="{ranks}"}} {suspect.factor:g}')
    return "\n".join(lines) + "\n"


def serve_metrics(port: int, page: Callable[[], str]) -> ThreadingHTTPServer:
    """Serve the metrics on the loopback address until shut down."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  the name it has there
            """Suppress request logging."""

    try:
        server = ThreadingHTTPServer((LOOPBACK, port), Page)
    except OSError as error:
        raise BadInput(f"no metrics on port {port}: {error.strerror}; give another port, or 0 for any") from error
    threading.Thread(target=server.serve_forever, name="takeup-watch-metrics", daemon=True).start()
    return server


# Report to the cluster scheduler --------------------------------------------------------------------------------------


def report_unhealthy(command: str, finding: Finding, hosts: Sequence[str] = ()) -> list[list[str]]:
    """Run the user's command for every slow rank, with {rank}, {host}, {kind} and {factor} filled in."""
    run = []
    for suspect in finding.event.suspects:
        for rank in suspect.ranks:
            host = hosts[rank] if rank < len(hosts) else socket.gethostname()
            values = {"rank": rank, "host": host, "kind": suspect.kind, "factor": f"{suspect.factor:.2f}"}
            run.append([_filled(word, values) for word in shlex.split(command)])
    for words in run:
        program = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        threading.Thread(target=program.wait, daemon=True).start()  # to reap the process
    return run


def _filled(word: str, values: dict[str, Any]) -> str:
    for name, value in values.items():
        word = word.replace(f"{{{name}}}", str(value))
    return word
