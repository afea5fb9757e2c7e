"""Throughput logs from JSON files and tables."""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.trace import TraceColumn, column_names, read_table
from takeup.errors import BadTrace

__all__ = ["ThroughputLog", "read_log", "read_logs"]


# Throughput logs: how long each sample lasted and how fast the link was meanwhile -------------------------------------
#
# Two forms are read. JSON: a list of objects with `duration_ms` and `bandwidth_kbps`, as the Sabre simulator writes
# them. Tables (CSV, gzipped CSV, Parquet): a column `rate_bps`, and either `duration_s` or `time_s`, the moment each
# sample begins; without both, samples last one second.

LONGEST_S = 1e7  # 116 days, second by second; more is a mistake in the unit of time

# Real throughput: logs from files -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ThroughputLog:
    """Samples of one or several measurements, one after the other; `starts` are the places where one begins."""

    name: str
    durations_s: Floats
    rates_bps: Floats
    starts: tuple[int, ...] = (0,)

    @property
    def duration_s(self) -> float:
        return float(self.durations_s.sum())

    @property
    def mean_bps(self) -> float:
        return float(self.durations_s @ self.rates_bps / self.durations_s.sum())

    def per_second(self) -> list[Floats]:
        """The mean rate of every whole second, one array for each measurement."""
        bounds = [*self.starts, len(self.rates_bps)]
        spans = [slice(begin, end) for begin, end in pairwise(bounds)]
        return [_per_second(self.durations_s[span], self.rates_bps[span]) for span in spans]


def _per_second(durations_s: Floats, rates_bps: Floats) -> Floats:
    times_s = np.concatenate(([0.0], np.cumsum(durations_s)))
    bits = np.concatenate(([0.0], np.cumsum(durations_s * rates_bps)))
    return np.diff(np.interp(np.arange(math.floor(times_s[-1]) + 1), times_s, bits))


def read_logs(paths: Iterable[Path], name: str) -> ThroughputLog:
    """Several measurements of the same kind of link as one log."""
    logs = [read_log(path) for path in paths]
    starts = np.concatenate(([0], np.cumsum([len(log.rates_bps) for log in logs])))[:-1]
    durations_s = np.concatenate([log.durations_s for log in logs])
    rates_bps = np.concatenate([log.rates_bps for log in logs])
    return ThroughputLog(name, durations_s, rates_bps, tuple(starts.tolist()))


def read_log(path: Path) -> ThroughputLog:
    """One measurement from a JSON file or a table."""
    if path.suffix.lower() == ".json":
        durations_s, rates_bps = _read_json(path)
    else:
        durations_s, rates_bps = _read_table(path)
    _check_log(path, durations_s, rates_bps)
    return ThroughputLog(path.name.partition(".")[0], durations_s, rates_bps)


def _read_json(path: Path) -> tuple[Floats, Floats]:
    try:
        samples = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadTrace(path, f"cannot be opened: {error.strerror or error}; check the path") from error
    except (ValueError, RecursionError) as error:
        raise BadTrace(path, f"is not JSON ({error}); expected a list of samples") from error
    durations_s = _numbers(path, samples, "duration_ms") / 1e3
    return durations_s, _numbers(path, samples, "bandwidth_kbps") * 1e3


def _numbers(path: Path, samples: object, key: str) -> Floats:
    if not isinstance(samples, list):
        raise BadTrace(path, f"found no list; expected a list of objects with a number {key!r} each")
    return np.array([_number(path, place, sample, key) for place, sample in enumerate(samples, start=1)])


def _number(path: Path, place: int, sample: Any, key: str) -> float:
    try:
        return float(sample[key])
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise BadTrace(path, f"sample {place} has no number {key!r}; every sample needs one") from error


def _read_table(path: Path) -> tuple[Floats, Floats]:
    rate = TraceColumn("rate_bps", "float", minimum=0)
    names = column_names(path)
    if "duration_s" in names:
        table = read_table(path, [rate, TraceColumn("duration_s", "float", minimum=0)])
        return table["duration_s"], table["rate_bps"]
    if "time_s" not in names:
        rates_bps = read_table(path, [rate])["rate_bps"]
        return np.ones(len(rates_bps)), rates_bps
    table = read_table(path, [rate, TraceColumn("time_s", "float")])
    durations_s = np.diff(table["time_s"])
    if (durations_s <= 0).any():
        line = int(np.argmax(durations_s <= 0)) + 3
        raise BadTrace(path, "time does not go forward; sort the samples by time", line=line, column="time_s")
    return np.append(durations_s, _median_duration_s(durations_s)), table["rate_bps"]


def _median_duration_s(durations_s: Floats) -> float:
    """The median, without numpy's masked arrays, which `np.median` would import; one second if there is none."""
    ordered = np.sort(durations_s)
    num = len(ordered)
    return float(ordered[(num - 1) // 2] + ordered[num // 2]) / 2 if num else 1.0


def _check_log(path: Path, durations_s: Floats, rates_bps: Floats) -> None:
    if len(rates_bps) < 2:
        raise BadTrace(path, f"has {len(rates_bps)} samples; a link is described by two or more")
    usable = np.isfinite(durations_s) & np.isfinite(rates_bps) & (durations_s > 0) & (rates_bps >= 0)
    if not usable.all():
        place = int(np.argmin(usable))
        found = f"sample {place + 1} lasts {durations_s[place]:g} s at {rates_bps[place]:g} bit/s"
        raise BadTrace(path, f"{found}; expected a time above zero and a rate of zero or more, both finite")
    if rates_bps.max() == 0:
        raise BadTrace(path, "is zero throughout; give a log of a link that works")
    if durations_s.sum() > LONGEST_S:
        found = f"lasts {durations_s.sum():g} s, longer than {LONGEST_S:g}"
        raise BadTrace(path, f"{found}; give times in seconds, or a part of the log")
