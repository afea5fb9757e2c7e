"""Throughput logs of every form, recognised by content: tables, Sabre, Pensieve, Mahimahi, logs of players."""

import re
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.limits import read_json, read_text, reading
from takeup.core.trace import TraceColumn, column_names, read_table
from takeup.errors import BadTrace
from takeup.streaming.player_logs import (
    BUFFER,
    SENT,
    is_buffer_table,
    log_of_cmcd,
    log_of_events,
    log_of_puffer,
    with_stalls,
)
from takeup.streaming.throughput import ThroughputLog, joined, median_s, split_at_gaps

__all__ = ["ThroughputLog", "read_log", "read_logs"]

LONGEST_S = 1e7  # 116 days, second by second; more is a mistake in the unit of time
SLOWEST_BPS, FASTEST_BPS = 1e3, 1e12  # a mean rate outside is a mistake in the unit of the rate
# Columns that hold rates in another unit, or in one that is not known.
OTHER_RATES = re.compile(r"(rate|throughput|bandwidth|speed)?_?([kmg]b(it)?_?(ps|s))?", re.IGNORECASE)
PACKET_BITS = 1504 * 8  # of Mahimahi: one packet for every line


def read_logs(paths: Iterable[Path], name: str) -> ThroughputLog:
    """Several measurements of the same kind of link as one log; client_buffer tables of Puffer add stalls to it."""
    everything = list(paths)
    buffers = [path for path in everything if is_buffer_table(path)]
    logs = [read_log(path) for path in everything if path not in buffers]
    if not logs:
        raise BadTrace(everything[0], "is a client_buffer table without throughput; give video_sent along with it")
    offsets = np.concatenate(([0], np.cumsum([len(log.rates_bps) for log in logs])))[:-1]
    starts = [int(offset) + start for offset, log in zip(offsets, logs, strict=True) for start in log.starts]
    durations_s = np.concatenate([log.durations_s for log in logs])
    rates_bps = np.concatenate([log.rates_bps for log in logs])
    form = "; ".join(dict.fromkeys(log.form for log in logs))
    sessions = tuple(session for log in logs for session in log.sessions)
    return with_stalls(ThroughputLog(name, durations_s, rates_bps, tuple(starts), form, sessions), buffers)


def read_log(path: Path) -> ThroughputLog:
    """One measurement from a file of any form in FORMS, which its content decides."""
    with reading(path, "expected a throughput log, see docs/guides/file-formats.md"), np.errstate(all="ignore"):
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


def _text(path: Path) -> str:
    return read_text(path, "expected text in UTF-8")


# Sabre: a list of objects with `duration_ms` and `bandwidth_kbps` -----------------------------------------------------


def _log_of_samples(path: Path, name: str) -> ThroughputLog:
    samples = read_json(path, "expected a list of samples in JSON")
    durations_s = _numbers(path, samples, "duration_ms") / 1e3
    rates_bps = _numbers(path, samples, "bandwidth_kbps") * 1e3
    return ThroughputLog(name, durations_s, rates_bps, form="samples of duration_ms (ms) and bandwidth_kbps (kbit/s)")


def _numbers(path: Path, samples: Any, key: str) -> Floats:
    if not isinstance(samples, list):
        raise BadTrace(path, f"found no list; expected a list of objects with a number {key!r} each")
    numbers: list[float] = []
    try:
        numbers.extend(float(sample[key]) for sample in samples)
    except (TypeError, KeyError, ValueError, OverflowError) as error:
        raise BadTrace(path, f"sample {len(numbers) + 1} has no number {key!r}; every sample needs one") from error
    return np.array(numbers)


# Tables (CSV, gzipped CSV, Parquet), by their columns -----------------------------------------------------------------


def _log_of_table(path: Path, name: str) -> ThroughputLog:
    columns = set(column_names(path))
    for needed, read in TABLES:
        if columns >= needed:
            return read(path, name)
    if columns >= BUFFER:
        raise BadTrace(path, "is a client_buffer table of Puffer without throughput; give video_sent along with it")
    log = ThroughputLog(name, *_read_table(path), form="table with rate_bps (bit/s)")
    return log if "duration_s" in columns else split_at_gaps(log)


def _log_of_5g(path: Path, name: str) -> ThroughputLog:
    """One row per second; those without a download are left out where a state says so."""
    text = {column: TraceColumn(column, "text") for column in ("Timestamp", "State") if column in column_names(path)}
    table = read_table(path, [TraceColumn("DL_bitrate", "float", minimum=0), *text.values()])
    loads = table["State"] == "D" if "State" in text else np.ones(len(table["DL_bitrate"]), dtype=np.bool_)
    try:
        moments = [datetime.strptime(each, "%Y.%m.%d_%H.%M.%S") for each in table["Timestamp"][loads]]
    except ValueError as error:
        raise BadTrace(path, f"has a Timestamp that is none ({error}); expected 2019.12.16_13.40.04") from error
    times_s = np.array([moment.timestamp() for moment in moments])
    rates_bps = 1e3 * np.asarray(table["DL_bitrate"][loads], np.float64)
    durations_s = np.append(np.diff(times_s), 1.0)[: len(rates_bps)]
    form = "G-NetTrack of a phone: DL_bitrate (kbit/s) by Timestamp"
    return split_at_gaps(ThroughputLog(name, durations_s[durations_s > 0], rates_bps[durations_s > 0], form=form))


def _log_of_fcc(path: Path, name: str) -> ThroughputLog:
    """The intervals of every test, one after the other; each unit is a measurement."""
    has_interval = "bytes_sec_interval" in column_names(path)
    rate = "bytes_sec_interval" if has_interval else "bytes_sec"
    wanted = [TraceColumn("unit_id", "text"), TraceColumn("dtime", "text")]
    table = read_table(path, [*wanted, TraceColumn("fetch_time", "float"), TraceColumn(rate, "float", minimum=0)])
    tests: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for unit, test, *row in zip(
        *(table[key].tolist() for key in ("unit_id", "dtime", "fetch_time", rate)), strict=True
    ):
        tests.setdefault(unit, {}).setdefault(test, []).append((row[0] / 1e6, 8.0 * row[1]))
    pieces = []
    for unit_tests in tests.values():
        parts = [np.array(sorted(rows)).T for rows in unit_tests.values()]
        durations_s = np.concatenate([np.diff(times_s, prepend=0.0) for times_s, _ in parts])
        rates_bps = np.concatenate([rates for _, rates in parts])
        pieces.append((durations_s[durations_s > 0], rates_bps[durations_s > 0]))
    return joined(name, pieces, f"FCC MBA: {rate} (bytes/s) by fetch_time (us)")


TABLES: tuple[tuple[set[str], Callable[[Path, str], ThroughputLog]], ...] = (
    (SENT, log_of_puffer),
    ({"DL_bitrate", "Timestamp"}, _log_of_5g),
    ({"unit_id", "dtime", "fetch_time", "bytes_sec"}, _log_of_fcc),
)


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
    return split_at_gaps(ThroughputLog(name, durations_s[keeps], rates_bps, form=form))


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


def _read_table(path: Path) -> tuple[Floats, Floats]:
    rate = TraceColumn("rate_bps", "float", minimum=0)
    names = column_names(path)
    if "rate_bps" not in names and (other := [name for name in names if OTHER_RATES.fullmatch(name)]):
        raise BadTrace(path, f"has {other[0]!r} and no 'rate_bps'; write rates in bit/s under that name", line=1)
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
    return np.append(durations_s, median_s(durations_s)), table["rate_bps"]


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
    r"(?i)[\s\S]*?([?&\s]CMCD=|\"mtp\"|\"cmcd[-\"]|^\s*[a-z]+=[^\n]*\bmtp=|[\s,]mtp=\d)": log_of_cmcd,
    r"\s*[\[{][\s\S]*?\"(loading|trequest|timeMs)\"": log_of_events,
    r"\s*[-+.\de]+[ \t]+[-+.\de]+[ \t]*(\r?\n|$)": _log_of_two_columns,
    r"\s*\d+[ \t]*\r?\n\s*\d+[ \t]*(\r?\n|$)": _log_of_packets,
}
