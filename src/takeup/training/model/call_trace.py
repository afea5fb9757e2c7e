"""Calls of ranks as a trace for Perfetto and Chrome: a process per rank, a thread per process group.

Clocks of ranks differ. A collective call ends at about the same time on all its ranks, so clocks are aligned by the
ends of such calls; within a rank, times are its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from takeup.training.model.calls import CallLog, Operation
from takeup.training.model.slowdowns import SlowdownEvent

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
        label = f"among {', '.join(map(str, ranks))}" if ranks else "messages"
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
            for known in [each for each in offsets if _share_a_group(log, each)][:1]
            for key in ends[log.rank].keys() & ends[known].keys()
        ]
        offsets[log.rank] = int(np.median(differences)) if differences else _first(log) - _first(logs[0])
    return offsets


def _share_a_group(log: CallLog, rank: int) -> bool:
    return any(rank in ranks for ranks in log.groups.values())


def _ends(log: CallLog) -> dict[tuple[int, int], int]:
    """End times of collective calls, by group and sequence number."""
    rows = log.calls[(log.calls["peer"] < 0) & (log.calls["ended_ns"] > 0)]
    keys = zip(rows["group"].tolist(), rows["number"].tolist(), strict=True)
    return dict(zip(keys, rows["ended_ns"].tolist(), strict=True))


def _first(log: CallLog) -> int:
    return int(log.calls["began_ns"].min()) if len(log.calls) else 0
