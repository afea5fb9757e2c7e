"""What players report about their downloads: CMCD, event dumps of hls.js, dash.js and Shaka, the tables of Puffer.

A sample lasts until the next download of the session where requests have a time, else as long as its segment plays,
which holds in the long run. Where sizes are known too, the session itself is kept, with the stalls that were reported.
"""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from takeup.core.arrays import Bools, Floats
from takeup.core.limits import read_text
from takeup.core.trace import TraceColumn, column_names, read_table
from takeup.errors import BadTrace
from takeup.streaming.throughput import PlayedSession, ThroughputLog, joined, median_s, split_at_gaps

Report = Mapping[str, Any]
LEAST_ELAPSED_S = 0.05  # between requests; `bl` is rounded to tenths of a second


class Download(NamedTuple):
    """One segment: when it was requested, how long it took, at what rate, and how long it plays; nan if unknown."""

    begin_s: float
    took_s: float
    rate_bps: float
    content_s: float


class Session(NamedTuple):
    """The downloads of one session, and how many stalls its player reports."""

    name: str
    downloads: list[Download]
    num_stalls: int | None


def log_of_sessions(name: str, sessions: Iterable[Session], form: str) -> ThroughputLog:
    """All sessions as measurements of one log."""
    kept = [session for session in sessions if session.downloads]
    played = tuple(map(_played, kept))
    log = joined(name, [_samples(session.downloads) for session in kept], form)
    return split_at_gaps(replace(log, sessions=played))


def _samples(downloads: Sequence[Download]) -> tuple[Floats, Floats]:
    begins_s, took_s, rates_bps, content_s = np.array(downloads, np.float64).T
    durations_s = content_s
    if np.isfinite(begins_s).all() and len(downloads) > 1:
        gaps_s = np.diff(begins_s)
        durations_s = np.append(gaps_s, took_s[-1] if np.isfinite(took_s[-1]) else median_s(gaps_s))
    if not np.isfinite(durations_s).all():
        raise ValueError("a request has neither a time nor a length")
    return durations_s[durations_s > 0], rates_bps[durations_s > 0]


def _played(session: Session) -> PlayedSession:
    _, took_s, _, content_s = np.array(session.downloads, np.float64).T
    return PlayedSession(session.name, content_s, took_s, session.num_stalls)


def _records(path: Path) -> list[Any]:
    """A JSON list, or lines of JSON, or other lines."""
    text = read_text(path, "expected text in UTF-8")
    if text.lstrip().startswith("["):
        return list(json.loads(text))
    lines = [line for line in text.splitlines() if line.strip()]
    return [json.loads(line) if line.lstrip().startswith("{") else line for line in lines]


# CMCD (CTA-5004): the keys that a player sends with every request, as query strings, headers or JSON ------------------
#
# `mtp` is the measured throughput in kbit/s, `br` the bitrate of the object, `d` its length in ms, `ts` the time in ms,
# `ot` its type: audio and manifests are left out. `bs` reports a stall since the last request. Most players smooth
# `mtp`, so where the buffer length `bl` (ms) shows how long a download took, that is taken instead.


def log_of_cmcd(path: Path, name: str) -> ThroughputLog:
    """A log from an access log or a list of reports."""
    try:
        reports = [report for report in map(_cmcd_report, _records(path)) if _is_video(report)]
        by_session: dict[str, list[Report]] = {}
        for report in reports:
            by_session.setdefault(report.get("sid", ""), []).append(report)
        if not by_session:
            raise BadTrace(path, "has no CMCD report with 'mtp', the measured throughput; let the player send it")
        sessions = [Session(sid, _cmcd_downloads(some), _stalls(some)) for sid, some in by_session.items()]
        return log_of_sessions(
            name, sessions, "CMCD: mtp (kbit/s), or br (kbit/s) and bl (ms); ts and d (ms), bs (stall)"
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise BadTrace(path, f"has a CMCD report that cannot be used ({error}); expected mtp and ts or d") from error


def _is_video(report: Report) -> bool:
    return "mtp" in report and report.get("ot", "v") in {"v", "av"}


def _stalls(reports: Sequence[Report]) -> int:
    return sum("bs" in report and str(report["bs"]).lower() != "false" for report in reports)


def _cmcd_downloads(reports: Sequence[Report]) -> list[Download]:
    columns = {
        key: np.array([float(each.get(key, math.nan)) for each in reports]) for key in ("ts", "br", "mtp", "d", "bl")
    }
    content_s, rates_bps = columns["d"] / 1e3, 1e3 * columns["mtp"]
    bits = np.where(columns["br"] > 0, 1e3 * columns["br"], math.nan) * content_s
    starts_up = np.array(["su" in each for each in reports])
    rates_bps, elapsed_s = _by_buffer(bits, content_s, columns["bl"] / 1e3, rates_bps, starts_up)
    took_s = bits / np.where(rates_bps > 0, rates_bps, math.nan)
    begins_s = columns["ts"] / 1e3
    if np.isfinite(columns["bl"]).all() and not np.isfinite(begins_s).all():
        begins_s = np.concatenate(([0.0], np.cumsum(np.where(elapsed_s > 0, elapsed_s, took_s)[:-1])))
    return [Download(*row) for row in np.stack([begins_s, took_s, rates_bps, content_s], axis=1).tolist()]


def _by_buffer(
    bits: Floats, content_s: Floats, buffer_s: Floats, rates_bps: Floats, starts_up: Bools
) -> tuple[Floats, Floats]:
    """Rates, and times between requests (nan if unknown): the buffer lost as much as has passed, less what came.

    A request that follows one with a buffer far from its maximum was made at once, so all of the time was download.
    """
    elapsed_s = np.append(buffer_s[:-1] + content_s[:-1] - buffer_s[1:], math.nan)
    elapsed_s[starts_up | np.append(starts_up[1:], True) | ~(elapsed_s > LEAST_ELAPSED_S)] = math.nan
    seen_bps = bits / elapsed_s
    is_busy = np.append(buffer_s[1:] < np.nanmax(buffer_s, initial=0.0) - content_s[:-1] / 2, False)
    at_least = np.fmax(rates_bps, seen_bps)
    return np.where(is_busy & np.isfinite(seen_bps), seen_bps, at_least), elapsed_s


def _cmcd_report(line: Any) -> Report:
    """The keys of one report: a JSON object, CMCD headers in one, or `br=3200,bs,mtp=48100` in a query string."""
    if isinstance(line, Mapping):
        parts = [value for key, value in line.items() if str(key).lower().startswith("cmcd")]
        parts += [value for value in line.values() if isinstance(value, str) and "CMCD=" in value]
        merged = {key: value for part in parts for key, value in _cmcd_report(part).items()}
        return merged or {str(key): value for key, value in line.items()}
    found = re.search(r"[?&\s]CMCD=([^&\s\"]+)", f" {line}")
    pairs = (part.strip().partition("=") for part in (unquote(found[1]) if found else str(line)).split(","))
    return {key: value.strip('"') if equals else "true" for key, equals, value in pairs}


# Event dumps of players: a JSON list, or one object per line ----------------------------------------------------------
#
# hls.js    the data of FRAG_LOADED and ERROR events: frag.stats.loading (ms), frag.stats.loaded (bytes), frag.duration
# dash.js   getDashMetrics().getHttpRequests('video'): trequest, _tfinish, trace[].b (bytes), _mediaduration
# Shaka     a response filter's { t, timeMs, bytes, duration } of every segment, t in ms at the end


def log_of_events(path: Path, name: str) -> ThroughputLog:
    """A log from what a page has written down."""
    try:
        records = [each for each in _records(path) if isinstance(each, Mapping)]
        product, read = next((key, read) for mark, key, read in EVENTS if mark in json.dumps(records))
        downloads = [each for each in map(read, records) if each is not None and each.took_s > 0]
        if not downloads:
            raise BadTrace(path, f"has no finished segment of {product}; write every one down")
        num_stalls = sum(re.search(STALL_EVENTS, json.dumps(record)) is not None for record in records)
        form = f"events of {product}: bytes and milliseconds of every segment"
        return log_of_sessions(name, [Session("", downloads, num_stalls)], form)
    except (ValueError, TypeError, OverflowError, KeyError, AttributeError, StopIteration) as error:
        raise BadTrace(path, f"has an event that cannot be used ({error!r}); expected a segment in each") from error


STALL_EVENTS = r"bufferStalledError|\"(bufferStalled|rebuffering)\"|\"(state|event)\": \"(buffering|stalled|waiting)\""


def _download(begin_s: float, end_s: float, num_bytes: float, content_s: float) -> Download:
    took_s = end_s - begin_s
    return Download(begin_s, took_s, 8 * num_bytes / took_s if took_s > 0 else math.nan, content_s)


def _hls_js(record: Report) -> Download | None:
    frag = record.get("data", record).get("frag")
    if not frag or "stats" not in frag:
        return None
    times, num_bytes = frag["stats"]["loading"], frag["stats"]["loaded"]
    return _download(times["start"] / 1e3, times["end"] / 1e3, num_bytes, float(frag.get("duration", math.nan)))


def _dash_js(record: Report) -> Download | None:
    if record.get("type") != "MediaSegment" or not record.get("trace"):
        return None
    begin, end = (_moment_s(record[key]) for key in ("trequest", "_tfinish" if "_tfinish" in record else "tfinish"))
    num_bytes = sum(sum(part["b"]) for part in record["trace"])
    return _download(begin, end, num_bytes, float(record.get("_mediaduration") or math.nan))


def _shaka(record: Report) -> Download | None:
    if "timeMs" not in record:
        return None
    end_s, took_s = record["t"] / 1e3, record["timeMs"] / 1e3
    return _download(end_s - took_s, end_s, record["bytes"], float(record.get("duration", math.nan)))


def _moment_s(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


EVENTS: tuple[tuple[str, str, Callable[[Report], Download | None]], ...] = (
    ('"loading"', "hls.js", _hls_js),
    ('"trequest"', "dash.js", _dash_js),
    ('"timeMs"', "Shaka", _shaka),
)

# Puffer: video_sent (bytes/s by TCP for every chunk), and client_buffer with the stalls of the same sessions ----------

CHUNK_S = 2.002
SENT, BUFFER = {"delivery_rate", "time (ns GMT)"}, {"cum_rebuf", "session_id"}


def log_of_puffer(path: Path, name: str) -> ThroughputLog:
    """TCP's delivery rate (bytes/s) at every chunk; each session is a measurement."""
    wanted = [TraceColumn("time (ns GMT)", "float"), TraceColumn("delivery_rate", "float", minimum=0)]
    has_size = "size" in column_names(path)
    wanted += [TraceColumn("size", "float", minimum=0)] if has_size else []
    table = read_table(path, [*wanted, TraceColumn("session_id", "text")])
    rates_bps = 8.0 * table["delivery_rate"]
    took_s = 8.0 * table["size"] / np.maximum(rates_bps, 1.0) if has_size else np.full(len(rates_bps), math.nan)
    sessions: dict[str, list[Download]] = {}
    for row in np.argsort(table["time (ns GMT)"], kind="stable"):
        values = (table["time (ns GMT)"][row] / 1e9, took_s[row], rates_bps[row], CHUNK_S)
        sessions.setdefault(str(table["session_id"][row]), []).append(Download(*map(float, values)))
    form = "Puffer video_sent: delivery_rate (bytes/s) by time (ns)"
    return log_of_sessions(name, (Session(key, downloads, None) for key, downloads in sorted(sessions.items())), form)


def is_buffer_table(path: Path) -> bool:
    """Whether a file is a client_buffer table, which has stalls and no throughput."""
    return path.is_file() and path.suffix.lower() != ".json" and set(column_names(path)) >= BUFFER


def with_stalls(log: ThroughputLog, paths: Sequence[Path]) -> ThroughputLog:
    """The sessions of a log with the stalls that client_buffer tables report for them."""
    stalls: dict[str, int] = {}
    for path in paths:
        table = read_table(path, [TraceColumn("session_id", "text"), TraceColumn("event", "text")])
        for session, event in zip(table["session_id"].tolist(), table["event"].tolist(), strict=True):
            stalls[session] = stalls.get(session, 0) + (event == "rebuffer")
    found = (replace(each, num_stalls=stalls.get(each.name, each.num_stalls)) for each in log.sessions)
    return replace(log, sessions=tuple(found))
