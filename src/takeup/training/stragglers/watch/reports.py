"""Reports on a watched job: a JSON line or file per finding, Prometheus metrics, and a live status line."""

import json
import shlex
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.core.files import write_atomically
from takeup.training.stragglers.contract import STEP_GROUP, CallLog, Finding, Operation, SlowdownEvent, Suspect
from takeup.training.stragglers.locate.standing import RankStanding
from takeup.training.stragglers.watch.agent import host_name
from takeup.training.stragglers.watch.ring import HeaderWord
from takeup.training.stragglers.watch.session import WatchSession

# Calls of ranks as a trace for Perfetto and Chrome: a process per rank, a thread per process group --------------------
#
# Clocks of ranks differ. A collective call ends at about the same time on all its ranks, so clocks are aligned by the
# ends of such calls; within a rank, times are its own.

MESSAGES = (Operation.SEND, Operation.RECEIVE)


def chrome_trace(logs: Sequence[CallLog], event: SlowdownEvent | None = None) -> dict[str, Any]:
    """A trace in Chrome's JSON format; `event` is stored in `otherData` and marks the suspected ranks."""
    offsets = _offsets_ns(logs)
    moments = [int(log.calls["began_ns"].min()) - offsets[log.rank] for log in logs if len(log.calls)]
    zero = min(moments, default=0)
    found: list[dict[str, Any]] = []
    for log in logs:
        found += _names(log, event)
        found += [_span(log.rank, row, offsets[log.rank] + zero) for row in log.calls if row["ended_ns"]]
    return {"traceEvents": found, "displayTimeUnit": "ms", "otherData": {} if event is None else _other(event)}


def _span(rank: int, row: npt.NDArray[np.void] | np.void, zero_ns: int) -> dict[str, Any]:
    operation, peer = Operation(int(row["operation"])), int(row["peer"])
    name = operation.name.lower().replace("_", " ")
    to = {Operation.SEND: f" to {peer}", Operation.RECEIVE: f" from {peer}"}.get(operation, "")
    return {
        "ph": "X",
        "name": name + to,
        "cat": "message" if operation in MESSAGES else "collective",
        "pid": rank,
        "tid": int(row["group"]) % 2**31,
        "ts": (int(row["began_ns"]) - zero_ns) / 1e3,
        "dur": (int(row["ended_ns"]) - int(row["began_ns"])) / 1e3,
        "args": {"bytes": int(row["size_bytes"]), "number": int(row["number"])},
    }


def _names(log: CallLog, event: SlowdownEvent | None) -> list[dict[str, Any]]:
    """Metadata events that name processes and threads."""
    blamed = [str(each) for each in (event.suspects if event else ()) if log.rank in each.ranks]
    name = f"rank {log.rank}" + "".join(f" ({each})" for each in blamed)
    found: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": log.rank, "args": {"name": name}}]
    for group, ranks in log.groups.items():
        label = f"among {', '.join(map(str, ranks))}" if ranks else "steps" if group == STEP_GROUP else "messages"
        thread = {"pid": log.rank, "tid": group % 2**31, "args": {"name": label}}
        found.append({"ph": "M", "name": "thread_name", **thread})
    return found


def _other(event: SlowdownEvent) -> dict[str, Any]:
    return {"sentence": event.sentence(), "began": event.began, "declared": event.declared, "factor": event.factor}


# Clocks ---------------------------------------------------------------------------------------------------------------


def _offsets_ns(logs: Sequence[CallLog]) -> dict[int, int]:
    """Clock offset by rank, relative to the first rank, via ranks whose offset is already known."""
    ends = {log.rank: _ends(log) for log in logs}
    offsets: dict[int, int] = {}
    for log in logs:
        differences = [
            ends[log.rank][key] - ends[known][key] + offsets[known]
            for known in [each for each in offsets if any(each in ranks for ranks in log.groups.values())][:1]
            for key in ends[log.rank].keys() & ends[known].keys()
        ]
        offsets[log.rank] = int(np.median(differences)) if differences else _first(log) - _first(logs[0])
    return offsets


def _ends(log: CallLog) -> dict[tuple[int, int], int]:
    """End times of collective calls, by group and sequence number."""
    is_collective = (log.calls["peer"] < 0) & (log.calls["operation"] != Operation.STEP)
    rows = log.calls[is_collective & (log.calls["ended_ns"] > 0)]
    keys = zip(rows["group"].tolist(), rows["number"].tolist(), strict=True)
    return dict(zip(keys, rows["ended_ns"].tolist(), strict=True))


def _first(log: CallLog) -> int:
    return int(log.calls["began_ns"].min()) if len(log.calls) else 0


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
    state = " and ".join(map(str, session.remedies.slow)) or "all well"
    num_ranks, number = session.gather.num_ranks, session.watcher.num_iterations
    return f"{num_ranks} ranks, iteration {number}, {1e3 * median(times_s):.1f} ms each, {state}"


def live_view(session: WatchSession) -> str:
    """The same, and below it the latest comparison of ranks."""
    return "\n".join([live_line(session), *standing_lines(session, session.watcher.latest_standings)])


MOST_LINES = 8


def standing_lines(session: WatchSession, rows: Sequence[RankStanding]) -> list[str]:
    """The ranks by how much they delay others: a header and one line each, the worst first."""
    if not rows:
        return []
    lines = [
        f"{'rank':>6} {'own':>9} {'waiting':>9} {'transfer':>9} {'last in':>8} {'costs':>6}  of an iteration, means"
    ]
    for row in rows[:MOST_LINES]:
        parts = " ".join(f"{1e3 * each:6.4g} ms" for each in (row.own_s, row.wait_s, row.transfer_s))
        cost = f"{row.lost_share:6.1%}" if row.role_size > 1 else "nothing to compare with"
        lines.append(f"{row.rank:6} {parts} {row.late_share:8.0%} {cost}  {_host(session, row.rank)}".rstrip())
    return [*lines, f"and {len(rows) - MOST_LINES} more ranks"] if len(rows) > MOST_LINES else lines


def _host(session: WatchSession, rank: int) -> str:
    """Host and local rank of a rank, as far as known."""
    reader = session.gather.readers[rank]
    host, local = (
        getattr(reader, "host", "") or (host_name() if reader.path else ""),
        reader.word(HeaderWord.LOCAL_RANK),
    )
    return f"local rank {local - 1} of {host}" if host and local else host


def places_of(session: WatchSession, event: SlowdownEvent) -> str:
    """Where the slow ranks of an event are."""
    ranks = sorted({rank for each in event.suspects if each.kind in ("compute", "pause") for rank in each.ranks})
    found = [
        f"; rank {rank} is {_host(session, rank)}"
        for rank in ranks[:MOST_LINES]
        if len(ranks) < len(session.gather.readers)
    ]
    return "".join(found)


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
        ("lost_seconds_total", "counter", "time lost to slowdowns", session.remedies.lost_s),
    ]
    lines = []
    for name, kind, what, value in values:
        lines += [f"# HELP takeup_watch_{name} {what}", f"# TYPE takeup_watch_{name} {kind}"]
        lines.append(f"takeup_watch_{name} {value:.15g}")
    lines += ["# HELP takeup_watch_cost_share lost by waiting for a rank", "# TYPE takeup_watch_cost_share gauge"]
    for row in session.watcher.latest_standings[:MOST_LINES]:
        lines.append(f'takeup_watch_cost_share{{rank="{row.rank}"}} {row.lost_share:.6g}')
    lines += ["# HELP takeup_watch_slow how many times as long it takes", "# TYPE takeup_watch_slow gauge"]
    for suspect in session.remedies.slow:
        ranks = ",".join(map(str, suspect.ranks))
        lines.append(f'takeup_watch_slow{{kind="{suspect.kind}",ranks="{ranks}"}} {suspect.factor:g}')
    return "\n".join(lines) + "\n"


# Report to the cluster scheduler --------------------------------------------------------------------------------------

NUM_TO_CONFIRM = 32  # further iterations in which a rank must stay slow, unless tests in a pause have confirmed it


@dataclass(slots=True)
class UnhealthyHosts:
    """Hosts of ranks that are confirmed to compute slowly, each reported once; `here` is never acted on.

    Links and busy machines are no reason to take a host away. Without `may_run`, commands are only printed.
    """

    command: str
    here: str
    may_run: bool = False
    _since: dict[int, int] = field(default_factory=dict)  # by rank: the iteration when it was first named
    _handled: set[int] = field(default_factory=set)

    def poll(self, session: WatchSession) -> list[str]:
        """What to print; commands that may run are started."""
        slow = {each.ranks[0]: each for each in session.remedies.slow if each.kind == "compute"}
        number = session.watcher.num_iterations
        self._since = {rank: self._since.get(rank, number) for rank in slow}
        latest = session.findings[-1].confirmed if session.findings else None
        tested = set() if latest is None else set(latest.slow_ranks)
        due = {rank for rank in slow if rank in tested or number - self._since[rank] >= NUM_TO_CONFIRM}
        new, self._handled = sorted(due - self._handled), self._handled | due
        return [self._report(slow[rank], getattr(session.gather.readers[rank], "host", self.here)) for rank in new]

    def _report(self, suspect: Suspect, host: str) -> str:
        if host in ("", self.here):
            where = "on the machine of this watcher" if host else "on a machine of unknown name"
            return f"{suspect}, confirmed, {where}, for which {shlex.split(self.command)[0]!r} is not run"
        words = command_for(self.command, suspect, host)
        if not self.may_run:
            return f"{suspect}, confirmed, on {host}; would run {shlex.join(words)} (add --act to run it)"
        try:
            program = subprocess.Popen(words, stdin=subprocess.DEVNULL)
        except OSError as error:
            return f"{words[0]!r} could not be run for {host}: {error.strerror}"
        threading.Thread(target=program.wait, daemon=True).start()  # to reap the process
        return f"{suspect}, confirmed, on {host}; ran {shlex.join(words)}"


def command_for(command: str, suspect: Suspect, host: str) -> list[str]:
    """The words of the user's command, with {rank}, {host}, {kind} and {factor} filled in; never a shell."""
    values = {"rank": suspect.ranks[0], "host": host, "kind": suspect.kind, "factor": f"{suspect.factor:.2f}"}
    words = shlex.split(command)
    for name, value in values.items():
        words = [word.replace(f"{{{name}}}", str(value)) for word in words]
    return words
