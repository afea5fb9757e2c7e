"""Calls of all ranks from traces of PyTorch's profiler (Kineto): a folder with a JSON file for every rank.

With NCCL they are the kernels on the device, whose arguments name the group; with Gloo the annotations `gloo:...`, from
which the group follows only if there is just one. A trace of `takeup training watch --out` has all ranks in one file.
"""

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from takeup.core.limits import LONGEST_S, read_json, reading, unpacked
from takeup.errors import BadTrace
from takeup.training.stragglers.contract import CALL, STEP_GROUP, CallLog, Operation

EXPECTED = "expected JSON traces of PyTorch's profiler, one file for every rank"
STEPS, GLOO = ("ProfilerStep#", "Optimizer.step#"), "gloo:"
NAMES = {  # parts of names, without underscores; the first that occurs counts
    "reducescatter": Operation.REDUCE_SCATTER,
    "allreduce": Operation.ALL_REDUCE,
    "allgather": Operation.ALL_GATHER,
    "alltoall": Operation.ALL_TO_ALL,
    "broadcast": Operation.BROADCAST,
    "barrier": Operation.BARRIER,
    "gather": Operation.GATHER,
    "scatter": Operation.SCATTER,
    "reduce": Operation.REDUCE,
    "send": Operation.SEND,
    "recv": Operation.RECEIVE,
    "receive": Operation.RECEIVE,
    "step": Operation.STEP,
}


class _Span(NamedTuple):
    """A call, in microseconds of the clock of its rank."""

    began_us: float
    lasts_us: float
    operation: int
    group: int
    size: int = 0
    peer: int = -1
    number: int = -1  # within its group, where the trace has it


Groups = dict[int, tuple[int, ...]]


def load_calls(path: Path) -> list[CallLog]:
    """The calls of all ranks from a folder, or from one file that has all."""
    files = sorted(each for each in path.iterdir() if each.is_file()) if path.is_dir() else [path]
    spans: dict[int, list[_Span]] = {}
    groups: dict[int, Groups] = {}
    for file in files:
        for rank, (found, known) in _ranks_of(file).items():
            if rank in spans:
                raise BadTrace(file, f"is a second trace of rank {rank}; give a folder with one file for every rank")
            spans[rank], groups[rank] = found, known
    _check(path, spans, groups)
    with reading(path, EXPECTED):
        return [_log(rank, spans[rank], groups[rank]) for rank in sorted(spans)]


def _ranks_of(path: Path) -> dict[int, tuple[list[_Span], Groups]]:
    """The calls and groups in one file, by rank."""
    trace = _read(path)
    try:
        with reading(path, EXPECTED):
            events = [each for each in trace["traceEvents"] if each.get("ph") in ("X", "M")]
            if "distributedInfo" not in trace:
                return _watched(events)
            about = trace["distributedInfo"]
            return {int(about["rank"]): _profiled(path, events, about.get("pg_config", ()))}
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise BadTrace(path, f"is no trace of a rank ({type(error).__name__}: {error}); {EXPECTED}") from error


def _read(path: Path) -> Any:
    if path.suffix != ".gz":
        return read_json(path, EXPECTED)
    with reading(path, EXPECTED), gzip.open(path), unpacked(path) as file:
        return json.load(file)


# A trace of one rank by the profiler ----------------------------------------------------------------------------------


def _profiled(path: Path, events: Sequence[Any], config: Sequence[Any]) -> tuple[list[_Span], Groups]:
    spans = [each for each in events if each["ph"] == "X"]
    kernels = [each for each in spans if "Collective name" in each.get("args", {}) and each.get("cat") == "kernel"]
    groups: Groups = {_number(each["pg_name"]): tuple(map(int, each["ranks"])) for each in config}
    ends_us = _steps_us(path, spans)
    calls = [_of_kernel(each["args"], each) for each in kernels] or _of_gloo(path, spans, groups, ends_us)
    return [*calls, *(_Span(end_us, 0.0, Operation.STEP, STEP_GROUP) for end_us in ends_us)], groups


def _steps_us(path: Path, spans: Sequence[Mapping[str, Any]]) -> list[float]:
    """When steps ended, on the device where that is known."""
    for name, kind in product(STEPS, ("gpu_user_annotation", "user_annotation")):
        if found := [sum(_times(each)) for each in spans if each["name"].startswith(name) and each.get("cat") == kind]:
            return found
    raise BadTrace(path, "has no steps; call `profiler.step()` after each")


def _of_kernel(arguments: Mapping[str, Any], event: Mapping[str, Any]) -> _Span:
    operation, group = _operation(arguments["Collective name"]), _number(arguments.get("Process Group Name", ""))
    return _Span(*_times(event), operation, group, int(arguments.get("In msg nelems", 0)))


def _of_gloo(path: Path, spans: Iterable[Mapping[str, Any]], groups: Groups, ends_us: Sequence[float]) -> list[_Span]:
    """Calls whose sizes are unknown: the position in its step tells one from another."""
    calls = sorted((*_times(each), _operation(each["name"])) for each in spans if each["name"].startswith(GLOO))
    if calls and len(groups) != 1:
        raise BadTrace(path, f"has calls of Gloo in {len(groups)} groups, and not which is of which; use `watch`")
    step = np.searchsorted(np.sort(ends_us), [began_us for began_us, *_ in calls])
    position = np.arange(len(calls)) - np.searchsorted(step, step)
    return [_Span(*call, next(iter(groups)), size) for call, size in zip(calls, position.tolist(), strict=True)]


def _number(name: object) -> int:
    """Of a process group, by its name; never that of steps."""
    return crc32(str(name).encode()) + 1


def _operation(name: str) -> Operation:
    plain = name.lower().replace("_", "").replace(" ", "")
    return next((each for part, each in NAMES.items() if part in plain), Operation.ALL_REDUCE)


def _times(event: Mapping[str, Any]) -> tuple[float, float]:
    began_us, lasts_us = float(event["ts"]), float(event.get("dur", 0.0))
    if not (0 <= lasts_us <= 1e6 * LONGEST_S and 0 <= began_us <= 1e6 * LONGEST_S):
        raise ValueError(f"an event begins at {began_us} and lasts {lasts_us} us")
    return began_us, lasts_us


# A trace of all ranks by `watch --out` --------------------------------------------------------------------------------


def _watched(events: Sequence[Any]) -> dict[int, tuple[list[_Span], Groups]]:
    spans: dict[int, list[_Span]] = defaultdict(list)
    groups: dict[int, Groups] = defaultdict(dict)
    for event in events:
        rank, group = int(event["pid"]), int(event.get("tid", 0))
        if event["ph"] == "X":
            name, _, peer = event["name"].replace(" from ", " to ").partition(" to ")
            called = (_operation(name), group, int(event["args"]["bytes"]), int(peer or -1), event["args"]["number"])
            spans[rank].append(_Span(*_times(event), *called))
        elif event["name"] == "thread_name":
            listed = event["args"]["name"].removeprefix("among").replace(",", " ").split()
            groups[rank][group] = tuple(int(each) for each in listed if each.isdigit())
    return {rank: (found, groups[rank]) for rank, found in spans.items()}


# Together -------------------------------------------------------------------------------------------------------------


def _check(path: Path, spans: Mapping[int, Sequence[_Span]], groups: Mapping[int, Groups]) -> None:
    """Refuse what cannot be matched: what is missing would count as own work."""
    counts: dict[int, dict[int, int]] = defaultdict(dict)
    for rank, calls in spans.items():
        if any(each.operation in (Operation.SEND, Operation.RECEIVE) and each.peer < 0 for each in calls):
            raise BadTrace(path, "has messages without their peers, so waiting is not known; use `watch` for pipelines")
        collectives = (each.group for each in calls if each.peer < 0 and each.operation != Operation.STEP)
        for group, number in Counter(collectives).items():
            counts[group][rank] = number
    are_numbered = all(each.number >= 0 for calls in spans.values() for each in calls)
    if not counts:
        raise BadTrace(path, f"has no collective calls; {EXPECTED}, with calls of NCCL or Gloo")
    for group, numbers in counts.items():
        if len(set(numbers.values())) > 1 and not are_numbered:
            least, most = min(numbers, key=lambda each: numbers[each]), max(numbers, key=lambda each: numbers[each])
            found = f"{numbers[least]} calls of rank {least} and {numbers[most]} of rank {most} in the same group"
            raise BadTrace(path, f"has {found}; profile the same steps on all ranks")
        if any(group not in known for rank, known in groups.items() if rank in numbers):
            raise BadTrace(path, "has calls in a group whose ranks it does not list; record it after the group is made")


def _log(rank: int, spans: Sequence[_Span], groups: Groups) -> CallLog:
    counts: Counter[tuple[int, int, int]] = Counter()
    rows = []
    for span in sorted(spans):
        stream = (span.group, span.peer, span.operation if span.peer >= 0 else 0)
        began_ns, lasts_ns = round(1e3 * span.began_us) + 1, round(1e3 * span.lasts_us)
        number = counts[stream] if span.number < 0 else span.number
        row = (span.operation, span.peer, span.group, number, span.size, began_ns, began_ns + lasts_ns)
        rows.append(row)
        counts[stream] += 1
    return CallLog(rank, np.array(rows, CALL), {STEP_GROUP: (), **groups})
