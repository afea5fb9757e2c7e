"""Throughput logs of every form that is recognised by its content: tables, Sabre, Pensieve, Mahimahi, Puffer, CMCD."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.limits import read_json, read_text
from takeup.core.trace import TraceColumn, column_names, read_table
from takeup.errors import BadTrace

__all__ = ["ThroughputLog", "read_log", "read_logs"]

LONGEST_S = 1e7  # 116 days, second by second; more is a mistake in the unit of time
SLOWEST_BPS, FASTEST_BPS = 1e3, 1e12  # a mean rate outside is a mistake in the unit of the rate
PACKET_BITS = 1504 * 8  # of Mahimahi: one packet for every line
OUTAGE_SHARE = 0.05  # of the mean rate; a long sample below it is an outage
GAP_S, GAP_SAMPLES = 30.0, 20.0  # a sample that lasts longer, and this many times the median, is a gap in the log

# Throughput logs: how long each sample lasted and how fast the link was meanwhile -------------------------------------


@dataclass(frozen=True, slots=True)
class ThroughputLog:
    """Samples of one or several measurements, one after the other; `starts` are the places where one begins.

    `form` says as what the file was read, with units. `num_stalls` are those that the log itself reports in
    `num_reports` requests, None if it reports none.
    """

    name: str
    durations_s: Floats
    rates_bps: Floats
    starts: tuple[int, ...] = (0,)
    form: str = ""
    num_stalls: int | None = None
    num_reports: int = 0

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
    offsets = np.concatenate(([0], np.cumsum([len(log.rates_bps) for log in logs])))[:-1]
    starts = [int(offset) + start for offset, log in zip(offsets, logs, strict=True) for start in log.starts]
    durations_s = np.concatenate([log.durations_s for log in logs])
    rates_bps = np.concatenate([log.rates_bps for log in logs])
    stalls = [log.num_stalls for log in logs if log.num_stalls is not None]
    forms = "; ".join(dict.fromkeys(log.form for log in logs))
    num_reports = sum(log.num_reports for log in logs)
    return ThroughputLog(
        name, durations_s, rates_bps, tuple(starts), forms, sum(stalls) if stalls else None, num_reports
    )


def read_log(path: Path) -> ThroughputLog:
    """One measurement from a file of any form in FORMS, which its content decides."""
    found = _recognised(path)
    _check_log(path, found.durations_s, found.rates_bps)
    return found


def _recognised(path: Path) -> ThroughputLog:
    name = path.name.partition(".")[0]
    if path.suffix.lower() == ".parquet" or path.name.lower().endswith(".gz") or not path.is_file():
        return _log_of_table(path, name)
    head = path.read_bytes()[:4096].decode("utf-8", errors="replace")
    for pattern, read in FORMS.items():
        if re.match(pattern, head):
            return read(path, name)
    return _log_of_table(path, name) if path.suffix.lower() != ".json" else _log_of_samples(path, name)


def _split_at_gaps(log: ThroughputLog) -> ThroughputLog:
    """A sample across a gap lasts as long as the others, and the next one begins a new measurement.

    For logs of moments: nothing says that the link kept its rate until the next one. A link that stood still did.
    """
    if len(log.rates_bps) == 0:
        return log
    usual_s = _median_duration_s(log.durations_s)
    works = log.rates_bps > OUTAGE_SHARE * log.rates_bps.mean()
    gaps = np.flatnonzero(works & (log.durations_s > max(GAP_S, GAP_SAMPLES * usual_s)))
    if len(gaps) == 0:
        return log
    durations_s = log.durations_s.copy()
    durations_s[gaps] = usual_s
    starts = sorted({*log.starts, *(int(gap) + 1 for gap in gaps if gap + 1 < len(durations_s))})
    form = f"{log.form}; {len(gaps)} gaps in time left out"
    return ThroughputLog(log.name, durations_s, log.rates_bps, tuple(starts), form, log.num_stalls, log.num_reports)


def _text(path: Path) -> str:
    return read_text(path, "expected text in UTF-8")


# Sabre: a list of objects with `duration_ms` and `bandwidth_kbps` -----------------------------------------------------


def _log_of_samples(path: Path, name: str) -> ThroughputLog:
    samples = read_json(path, "expected a list of samples in JSON")
    durations_s = _numbers(path, samples, "duration_ms") / 1e3
    rates_bps = _numbers(path, samples, "bandwidth_kbps") * 1e3
    return ThroughputLog(name, durations_s, rates_bps, form="samples of duration_ms (ms) and bandwidth_kbps (kbit/s)")


def _numbers(path: Path, samples: object, key: str) -> Floats:
    if not isinstance(samples, list):
        raise BadTrace(path, f"found no list; expected a list of objects with a number {key!r} each")
    return np.array([_number(path, place, sample, key) for place, sample in enumerate(samples, start=1)])


def _number(path: Path, place: int, sample: Any, key: str) -> float:
    try:
        return float(sample[key])
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise BadTrace(path, f"sample {place} has no number {key!r}; every sample needs one") from error


# Tables (CSV, gzipped CSV, Parquet): `rate_bps`, and either `duration_s` or `time_s`, the moment each sample begins; or
# the video_sent table of Puffer --------------------------------------------------------------------------------------


def _log_of_table(path: Path, name: str) -> ThroughputLog:
    if {"delivery_rate", "time (ns GMT)"} <= set(column_names(path)):
        return _log_of_puffer(path, name)
    log = ThroughputLog(name, *_read_table(path), form="table with rate_bps (bit/s)")
    return log if "duration_s" in column_names(path) else _split_at_gaps(log)


def _log_of_puffer(path: Path, name: str) -> ThroughputLog:
    """TCP's delivery rate (bytes/s) at every chunk; each session is a measurement."""
    wanted = (TraceColumn("time (ns GMT)", "float"), TraceColumn("delivery_rate", "float", minimum=0))
    table = read_table(path, [*wanted, TraceColumn("session_id", "text")])
    order = np.lexsort((table["time (ns GMT)"], table["session_id"]))
    times_s, session = table["time (ns GMT)"][order] / 1e9, table["session_id"][order]
    begins = np.flatnonzero(np.append(True, session[1:] != session[:-1]))
    durations_s = np.append(np.diff(times_s), 0.0)
    durations_s[np.append(begins[1:] - 1, -1)] = _median_duration_s(durations_s[durations_s > 0])
    keeps = durations_s > 0
    starts = np.searchsorted(np.flatnonzero(keeps), begins)
    rates_bps: Floats = 8.0 * table["delivery_rate"][order][keeps]
    form = "Puffer video_sent: delivery_rate (bytes/s) by time (ns)"
    return _split_at_gaps(ThroughputLog(name, durations_s[keeps], rates_bps, tuple(np.unique(starts).tolist()), form))


# Pensieve and Puffer as two columns (seconds, Mbit/s); Mahimahi (the millisecond of every packet) ---------------------


def _log_of_two_columns(path: Path, name: str) -> ThroughputLog:
    rows = [line.split() for line in _text(path).splitlines() if line.strip()]
    try:
        times_s, rates_mbps = np.array(rows, dtype=np.float64).T
    except ValueError as error:
        raise BadTrace(path, "has lines without exactly two numbers; expected seconds and Mbit/s in each") from error
    durations_s = np.diff(times_s)
    if (durations_s < 0).any():
        line = int(np.argmax(durations_s < 0)) + 2
        raise BadTrace(path, "time does not go forward; sort the samples by time", line=line)
    keeps = durations_s > 0
    form = "two columns: time (s) and rate (Mbit/s)"
    rates_bps: Floats = 1e6 * rates_mbps[:-1][keeps]
    return _split_at_gaps(ThroughputLog(name, durations_s[keeps], rates_bps, form=form))


def _log_of_packets(path: Path, name: str) -> ThroughputLog:
    try:
        times_ms = np.array(_text(path).split(), np.float64)
    except ValueError as error:
        raise BadTrace(path, "has lines that are no number; expected the millisecond of every packet") from error
    if not (times_ms[0] >= 0 and (np.diff(times_ms) >= 0).all() and times_ms[-1] <= 1e3 * LONGEST_S):
        raise BadTrace(path, "has one number per line that are no rising milliseconds; give rates a header 'rate_bps'")
    packets = np.bincount((times_ms / 1e3).astype(np.int64)).astype(np.float64)
    form = "Mahimahi: the time (ms) of every packet of 1504 bytes"
    return ThroughputLog(name, np.ones(len(packets)), PACKET_BITS * packets, form=form)


# CMCD (CTA-5004): the keys that a player sends with every request, as query strings or JSON --------------------------
#
# `mtp` is the measured throughput in kbit/s. A sample lasts until the next request of the session where requests have
# a time `ts` (ms), else as long as its object `d` (ms) plays, which holds in the long run. `bs` reports a stall.


def _log_of_cmcd(path: Path, name: str) -> ThroughputLog:
    sessions: dict[str, list[Mapping[str, str]]] = {}
    try:
        reports = [report for report in map(_cmcd_report, _cmcd_lines(_text(path))) if "mtp" in report]
        for report in reports:
            sessions.setdefault(report.get("sid", ""), []).append(report)
        parts = [_cmcd_samples(each) for each in sessions.values()]
    except (ValueError, KeyError, RecursionError) as error:
        raise BadTrace(path, f"has a CMCD report that cannot be used ({error}); expected mtp and ts or d") from error
    if not parts:
        raise BadTrace(path, "has no CMCD report with 'mtp', the measured throughput; let the player send it")
    durations_s, rates_bps = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    starts = np.concatenate(([0], np.cumsum([len(durations) for durations, _ in parts])))[:-1]
    num_stalls = sum("bs" in report and report["bs"].lower() != "false" for report in reports)
    form = "CMCD: mtp (kbit/s), ts or d (ms), bs (stall)"
    log = ThroughputLog(name, durations_s, rates_bps, tuple(starts.tolist()), form, num_stalls, len(reports))
    return _split_at_gaps(log)


def _cmcd_lines(text: str) -> list[Any]:
    if text.lstrip().startswith("["):
        return list(json.loads(text))
    return [line for line in text.splitlines() if line.strip()]


def _cmcd_report(line: Any) -> dict[str, str]:
    """The keys of one report: a JSON object, or `br=3200,bs,mtp=48100` in a query string or alone."""
    if isinstance(line, str) and line.lstrip().startswith("{"):
        line = json.loads(line)
    if isinstance(line, Mapping):
        inner = line.get("cmcd", line.get("CMCD", line))
        return (
            {str(key): str(value) for key, value in inner.items()} if isinstance(inner, Mapping) else _keys(str(inner))
        )
    found = re.search(r"[?&\s]CMCD=([^&\s\"]+)", f" {line}")
    return _keys(unquote(found[1]) if found else line)


def _keys(text: str) -> dict[str, str]:
    pairs = (part.strip().partition("=") for part in text.split(","))
    return {key: value.strip('"') if equals else "true" for key, equals, value in pairs}


def _cmcd_samples(reports: list[Mapping[str, str]]) -> tuple[Floats, Floats]:
    rates_bps = np.array([1e3 * float(report["mtp"]) for report in reports])
    if all("ts" in report for report in reports) and len(reports) > 1:
        gaps_s = np.diff([float(report["ts"]) / 1e3 for report in reports])
        durations_s = np.append(gaps_s, _median_duration_s(gaps_s))
    else:
        durations_s = np.array([float(report["d"]) / 1e3 for report in reports])
    return durations_s[durations_s > 0], rates_bps[durations_s > 0]


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
    mean_bps = float(durations_s @ rates_bps / durations_s.sum())
    if not SLOWEST_BPS <= mean_bps <= FASTEST_BPS:
        raise BadTrace(path, f"has a mean rate of {mean_bps:g} bit/s, which no link has; check the unit of the rate")


FORMS: dict[str, Callable[[Path, str], ThroughputLog]] = {
    r"\s*\[\s*\{[^}]*\"(duration_ms|bandwidth_kbps)\"": _log_of_samples,
    r"[\s\S]*?([?&\s]CMCD=|\"mtp\"|\"cmcd\"|^\s*[a-z]+=[^\n]*\bmtp=|[\s,]mtp=\d)": _log_of_cmcd,
    r"\s*[-+.\de]+[ \t]+[-+.\de]+[ \t]*(\r?\n|$)": _log_of_two_columns,
    r"\s*\d+[ \t]*\r?\n\s*\d+[ \t]*(\r?\n|$)": _log_of_packets,
}
