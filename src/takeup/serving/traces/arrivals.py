"""Arrival processes: Poisson, a model of two online-retail services, or the trace GenTD26.

How it works. Arrival times, adapters and load times are sampled independently and joined request by request:

    times     a Poisson process, or the times of GenTD26, rescaled to a rate
    adapters  sampled sets of two services, three requests of A to seven of B; or the sets of GenTD26, in its order
    loads     from the size of a LoRA and a bandwidth, or from the load times that GenTD26 has

No published trace has both times and names of LoRAs: GenTD26 has them in two files. So the first request with one LoRA
gets the first set of one LoRA, and so on.
"""

import ast
import csv
import tarfile
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import cycle
from pathlib import Path
from typing import IO, Literal

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.limits import MOST_COUNT, MOST_MEMBERS, lines, reading, text_lines, unpacked
from takeup.core.seeds import Streams
from takeup.errors import BadInput, BadTrace
from takeup.serving.model import Access, Arrival
from takeup.serving.traces.adapter_accesses import MEASURED, generate_accesses, interleaved

Loads = Literal["bandwidth", "gentd26"]
A_SHARE = 0.3  # of all requests are for service A
LORA_MIB, BANDWIDTH_MIB_PER_S = (341.0, 456.0), 800.0  # two LoRAs of about 400 MiB take a second
LOADS: dict[Loads, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "bandwidth": ((0.0, 1.0), tuple(size / BANDWIDTH_MIB_PER_S for size in LORA_MIB)),
    "gentd26": ((0.0, 0.5, 0.9, 0.99, 1.0), (2.0, 4.38, 6.1, 8.2, 10.0)),  # both ends are ours
}
"""Seconds to load a LoRA: shares of all loads, and the seconds that this share takes at most."""
COLUMNS = ("gmt_create", "num_images_per_prompt", "num_inference_steps", "checkpoint_model_version_id", "num_lora")


def poisson_arrivals(num_requests: int, rate_per_s: float, seed: int, *, num_steps: int = 30) -> list[Arrival]:
    """Requests without add-ons, with exponential inter-arrival times."""
    times_s = _poisson(num_requests, rate_per_s, seed)
    return [Arrival(number, float(time_s), num_steps) for number, time_s in enumerate(times_s)]


def retail_arrivals(num_requests: int, rate_per_s: float, seed: int, *, num_steps: int = 50) -> list[Arrival]:
    """Requests of two online-retail services with their LoRAs and ControlNets, as a Poisson process."""
    random = Streams(seed).child("retail").stream("services")
    from_a = random.random(num_requests) < A_SHARE
    sources = {True: _sets("a", int(from_a.sum()), seed), False: _sets("b", int((~from_a).sum()), seed)}
    arrivals = []
    for number, time_s in enumerate(_poisson(num_requests, rate_per_s, seed)):
        service = bool(from_a[number])
        name = "a" if service else "b"
        shares = MEASURED[f"{name}-controlnet"].count_shares
        num_controls = int(random.choice(len(shares), p=shares))
        loras = tuple((name, one) for one in next(sources[service]))
        arrivals.append(Arrival(number, float(time_s), num_steps, 2, loras, (0.0,) * len(loras), num_controls, name))
    return arrivals


def with_loads(arrivals: Sequence[Arrival], kind: Loads, seed: int) -> list[Arrival]:
    """The same requests, with sampled load times for their LoRAs."""
    shares, seconds = LOADS[kind]
    random = Streams(seed).child("loads").stream(kind)
    num_uses = sum(len(one.loras) for one in arrivals)
    drawn: Iterator[float] = iter(np.interp(random.random(num_uses), shares, seconds).tolist())
    return [replace(one, load_s=tuple(next(drawn) for _ in one.loras)) for one in arrivals]


def at_rate(arrivals: Sequence[Arrival], rate_per_s: float) -> list[Arrival]:
    """The same requests with arrival times rescaled so that the mean rate is `rate_per_s`, starting at zero."""
    _check_rate(rate_per_s)
    if len(arrivals) < 2:
        return list(arrivals)
    first_s, last_s = arrivals[0].arrival_s, arrivals[-1].arrival_s
    if not last_s > first_s:
        raise BadInput(f"{len(arrivals)} requests come at the same time; a rate needs gaps between them")
    factor = (len(arrivals) - 1) / (rate_per_s * (last_s - first_s))
    return [replace(one, arrival_s=(one.arrival_s - first_s) * factor) for one in arrivals]


def read_arrivals(path: Path, accesses: Sequence[Access]) -> list[Arrival]:
    """Read GenTD26 with the times of `lora_request_trace.csv` at `path`; LoRA sets are taken from `accesses`."""
    with reading(path, "give lora_request_trace.csv"), path.open(encoding="utf-8", newline="") as file:
        table = csv.DictReader(text_lines(path, file))
        missing = [column for column in COLUMNS if column not in (table.fieldnames or ())]
        if missing:
            raise BadTrace(path, f"has no column {missing[0]!r}; give lora_request_trace.csv of the trace GenTD26")
        rows = [_row(path, line, row) for line, row in enumerate(table, start=2)]
    if not rows:
        raise BadTrace(path, "holds no request; give a trace with some")
    return _joined(sorted(rows, key=lambda row: row.time_s), accesses)


@dataclass(frozen=True, slots=True)
class _RequestRow:
    time_s: float
    num_images: int
    num_steps: int
    base: str
    num_loras: int


def _row(path: Path, line: int, row: Mapping[str, str]) -> _RequestRow:
    time, images, steps, base, loras = (row[column] for column in COLUMNS)
    try:
        time_s = datetime.fromisoformat(f"{time}+00:00").timestamp()
        return _RequestRow(time_s, _count(images or "1", 1), _count(steps or "30", 1), base, _count(loras, 0))
    except (ValueError, TypeError, OverflowError) as problem:
        raise BadTrace(path, f"is no request ({problem}); give the file as it was published", line=line) from problem


def _count(cell: str, least: int) -> int:
    if (number := int(float(cell))) > MOST_COUNT:
        raise ValueError(f"{number} is more than {MOST_COUNT}")
    return max(least, number)


def _joined(rows: Sequence[_RequestRow], accesses: Sequence[Access]) -> list[Arrival]:
    by_count: dict[int, list[tuple[int, ...]]] = {}
    for access in accesses:
        by_count.setdefault(len(access.adapters), []).append(access.adapters)
    sources = {count: cycle(sets) for count, sets in by_count.items()}
    arrivals = []
    for number, row in enumerate(rows):
        loras: tuple[Hashable, ...] = next(sources[row.num_loras]) if row.num_loras in sources else ()
        num_rows, time_s = 2 * row.num_images, row.time_s - rows[0].time_s
        arrivals.append(Arrival(number, time_s, row.num_steps, num_rows, loras, (0.0,) * len(loras), 0, row.base))
    return arrivals


def _sets(service: str, num_requests: int, seed: int) -> Iterator[tuple[int, ...]]:
    """The LoRAs of at least `num_requests` requests of a service, interleaved over as many instances as needed."""
    num_instances = 1
    while len(accesses := generate_accesses(f"{service}-lora", num_instances, seed)) < num_requests:
        num_instances *= 2
    return (access.adapters for access in interleaved(accesses))


def _poisson(num_requests: int, rate_per_s: float, seed: int) -> Floats:
    _check_rate(rate_per_s)
    times: Floats = Streams(seed).child("arrivals").stream("poisson").exponential(1 / rate_per_s, num_requests).cumsum()
    return times


def _check_rate(rate_per_s: float) -> None:
    if not rate_per_s > 0:
        raise BadInput(f"the rate is {rate_per_s:g} requests a second; give a number above zero")


# Reader of GenTD26, Alibaba's published trace of an image-generation service (cluster-trace-v2026-GenAI) --------------
#
# `data_trace_processed.csv` has a row for every request, in order, without a time; its column `lora_args` lists the
# LoRAs with their scales. The trace is not shipped; give the path of the file, or of the archive it comes in.


FILE, COLUMN, BASE = "data_trace_processed.csv", "lora_args", "checkpoint_model_version_id"


def read_gentd26(path: Path, *, with_base: bool = False) -> list[Access]:
    """The LoRAs of every request, numbered by first appearance; `with_base` includes the base model."""
    numbers: dict[str, int] = {}
    with _opened(path) as file:
        rows = csv.DictReader(file)
        _check(path, rows.fieldnames or ())
        return [
            Access(0, tuple(numbers.setdefault(name, len(numbers)) for name in _names(path, line, row, with_base)))
            for line, row in enumerate(rows, start=2)
        ]


@contextmanager
def _opened(path: Path) -> Iterator[Iterator[str]]:
    with reading(path, f"give {FILE} or the archive it comes in"), ExitStack() as stack:
        if path.name.endswith(".csv"):
            file: IO[bytes] = stack.enter_context(path.open("rb"))
        else:
            with path.open("rb") as packed:
                is_gzip = packed.read(2) == b"\x1f\x8b"
            stream = stack.enter_context(unpacked(path) if is_gzip else path.open("rb"))
            file = stack.enter_context(_member(path, stack.enter_context(tarfile.open(fileobj=stream, mode="r|"))))
        yield (line.decode("utf-8") for line in lines(path, file))


def _member(path: Path, archive: tarfile.TarFile) -> IO[bytes]:
    """The file of requests in the archive, which is read from its beginning up to there."""
    for number, member in enumerate(archive):
        if number == MOST_MEMBERS:
            break
        if member.name == FILE and member.isfile():
            file = archive.extractfile(member)
            assert file is not None
            return file
    raise BadTrace(path, f"has no file {FILE}; give the archive of the trace GenTD26")


def _check(path: Path, columns: object) -> None:
    for column in (COLUMN, BASE):
        if column not in list(columns):  # type: ignore[call-overload]
            raise BadTrace(path, f"has no column {column!r}; give {FILE} of the trace GenTD26")


def _names(path: Path, line: int, row: dict[str, str], with_base: bool) -> list[str]:
    try:
        uses = ast.literal_eval(row[COLUMN] or "[]")
        names = [str(use["modelVersionId"]) for use in uses]
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError) as problem:
        raise BadTrace(path, "is no list of LoRAs with their scales", line=line, column=COLUMN) from problem
    return list(dict.fromkeys(([f"base {row[BASE]}"] if with_base else []) + names))
