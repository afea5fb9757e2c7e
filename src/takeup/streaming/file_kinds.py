"""Files of streaming that `takeup try` answers: throughput logs of all forms that are read, and CMCD reports."""

import re
import shlex
from pathlib import Path

from takeup.core.file_kinds import Answer, FileKind, Sample, rows_of

BITRATE_SHARE = 0.75  # of the mean rate: a video that the link carries, but not all the time


def _is_cmcd(sample: Sample) -> bool:
    return re.match(r"[\s\S]*?([?&\s]CMCD=|\"cmcd\"|\"mtp\"|\bmtp=\d)", sample.text, re.IGNORECASE) is not None


def _is_log(sample: Sample) -> bool:
    tables = (("rate_bps",), ("delivery_rate", "time (ns gmt)"), ("dl_bitrate", "timestamp"), ("unit_id", "bytes_sec"))
    if any(sample.has(*columns) for columns in tables):
        return True
    if re.match(r"\s*[\[{][\s\S]*?\"(loading|trequest|timeMs)\"", sample.text):
        return True
    lines = sample.text.splitlines()[:-1][:50]  # the last one may be cut
    numbers = r"\s*\d+\s*|\s*[-+.\de]+[ \t]+[-+.\de]+\s*"
    samples = re.match(r"\s*\[\s*\{[^}]*\"(duration_ms|bandwidth_kbps)\"", sample.text)
    return samples is not None or (len(lines) > 1 and all(re.fullmatch(numbers, line) for line in lines))


KINDS = (
    FileKind("a log of CMCD reports", _is_cmcd, "takeup.streaming.file_kinds:answer_log"),
    FileKind("a throughput log", _is_log, "takeup.streaming.file_kinds:answer_log"),
)


def answer_log(path: Path, *, quiet: bool) -> Answer:
    """The log replayed with the rules of two players, for a video of three quarters of the mean rate."""
    from takeup.streaming.experiment import StreamingScenario, run
    from takeup.streaming.traces import read_log

    log = read_log(path)
    bitrate_bps = BITRATE_SHARE * log.mean_bps
    players = ("dash.js", "hls.js")
    report = run(
        StreamingScenario(verb="advise", logs=(str(path),), bitrate_bps=bitrate_bps, players=players), quiet=quiet
    )
    default, best = rows_of(report)[:2]
    sentences = (
        f"{log.duration_s:,.0f} s with a mean of {log.mean_bps / 1e6:.2f} Mbit/s were read as {log.form}.",
        f"At {bitrate_bps / 1e6:.2f} Mbit/s, {default['player']} with its default start threshold of "
        f"{default['start at']:g} s stalls in {default['P(stall)']:.1%} of the videos "
        f"({default['from']:.1%} to {default['to']:.1%} on the next log of this link).",
        f"A threshold of {best['start at']:g} s stalls in {best['P(stall)']:.1%}, and viewers wait "
        f"{best['start-up']:.1f} s instead of {default['start-up']:.1f} s.",
    )
    command = f"takeup streaming advise {shlex.quote(str(path))} --bitrate {bitrate_bps / 1e6:.2f}Mbit"
    return Answer(report, sentences, command)
