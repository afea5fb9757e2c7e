"""Throughput logs: every form reads the same, bits are conserved, and a bad file is named in one sentence."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from takeup.errors import BadTrace
from takeup.streaming.traces import ThroughputLog, read_log, read_logs

RATES = [1e6, 3e6, 2e6]
DURATIONS = [0.5, 2.0, 1.5]


def csv(folder: Path, text: str, name: str = "log.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def samples(durations: list[float], rates: list[float]) -> str:
    pairs = zip(durations, rates, strict=True)
    return json.dumps([{"duration_ms": 1e3 * s, "bandwidth_kbps": r / 1e3, "latency_ms": 20} for s, r in pairs])


def with_durations(durations: list[float], rates: list[float]) -> str:
    return "duration_s,rate_bps\n" + "".join(f"{s},{r}\n" for s, r in zip(durations, rates, strict=True))


# Forms ----------------------------------------------------------------------------------------------------------------


def as_json(folder: Path) -> Path:
    return csv(folder, samples(DURATIONS, RATES), "log.json")


def as_csv(folder: Path) -> Path:
    return csv(folder, with_durations(DURATIONS, RATES))


def as_gzip(folder: Path) -> Path:
    path = folder / "log.csv.gz"
    path.write_bytes(gzip.compress(with_durations(DURATIONS, RATES).encode()))
    return path


def as_parquet(folder: Path) -> Path:
    path = folder / "log.parquet"
    pq.write_table(pa.table({"rate_bps": RATES, "duration_s": DURATIONS}), path)
    return path


@pytest.mark.parametrize("write", [as_json, as_csv, as_gzip, as_parquet])
def test_every_form_reads_the_same(write: Callable[[Path], Path], tmp_path: Path) -> None:
    log = read_log(write(tmp_path))

    assert log.name == "log"
    assert log.durations_s == pytest.approx(DURATIONS)
    assert log.rates_bps == pytest.approx(RATES)
    assert log.duration_s == pytest.approx(4.0)
    assert log.mean_bps == pytest.approx((0.5 * 1e6 + 2 * 3e6 + 1.5 * 2e6) / 4)


def test_a_name_in_capitals_is_read_too(tmp_path: Path) -> None:
    assert read_log(csv(tmp_path, samples(DURATIONS, RATES), "LOG.JSON")).rates_bps == pytest.approx(RATES)


def test_times_say_when_samples_begin_and_the_last_lasts_as_long_as_the_others_do(tmp_path: Path) -> None:
    log = read_log(csv(tmp_path, "time_s,rate_bps\n10,1e6\n10.5,3e6\n12.5,2e6\n14,1e6\n"))

    assert log.durations_s == pytest.approx([0.5, 2.0, 1.5, 1.5])


def test_times_may_begin_anywhere(tmp_path: Path) -> None:
    early, late = (csv(tmp_path, f"time_s,rate_bps\n{t},1e6\n{t + 1},2e6\n", f"{t}.csv") for t in (-5, 1_700_000_000))

    assert read_log(early).per_second()[0] == pytest.approx(read_log(late).per_second()[0])


def test_without_times_samples_last_a_second(tmp_path: Path) -> None:
    log = read_log(csv(tmp_path, "rate_bps\n1e6\n2e6\n"))

    assert log.durations_s.tolist() == [1.0, 1.0]


def test_durations_win_over_times(tmp_path: Path) -> None:
    log = read_log(csv(tmp_path, "time_s,rate_bps,duration_s\n0,1e6,4\n1,2e6,5\n"))

    assert log.durations_s.tolist() == [4.0, 5.0]


# Seconds --------------------------------------------------------------------------------------------------------------


def test_seconds_are_means_of_what_falls_into_them() -> None:
    log = ThroughputLog("log", np.array(DURATIONS), np.array(RATES))

    assert log.per_second()[0] == pytest.approx([2e6, 3e6, 2.5e6, 2e6])


DURATION = st.floats(0.01, 20)
RATE = st.floats(0, 1e9)


@given(st.lists(st.tuples(DURATION, RATE), min_size=1, max_size=30))
def test_seconds_conserve_bits(pairs: list[tuple[float, float]]) -> None:
    durations, rates = np.array(pairs).T
    (seconds,) = ThroughputLog("log", durations, rates).per_second()
    left_s = durations.sum() - len(seconds)

    assert 0 <= left_s < 1 + 1e-9
    assert seconds.sum() <= durations @ rates * (1 + 1e-9) + 1e-6
    assert seconds.sum() >= durations @ rates - left_s * rates.max() * (1 + 1e-9) - 1e-6


@given(st.lists(RATE, min_size=2, max_size=30))
def test_whole_seconds_stay_as_they_are(rates: list[float]) -> None:
    log = ThroughputLog("log", np.ones(len(rates)), np.array(rates))

    assert log.per_second()[0] == pytest.approx(rates, abs=1e-3)


def test_several_measurements_stay_apart(tmp_path: Path) -> None:
    first, second = csv(tmp_path, "rate_bps\n1\n2\n", "a.csv"), csv(tmp_path, "rate_bps\n3\n4\n5\n", "b.csv")
    log = read_logs([first, second], "both")

    assert (log.name, log.starts) == ("both", (0, 2))
    assert [piece.tolist() for piece in log.per_second()] == [[1.0, 2.0], [3.0, 4.0, 5.0]]


# Bad files ------------------------------------------------------------------------------------------------------------

BAD = {
    "negative.csv": ("rate_bps\n1e6\n-5\n", "line 3, column 'rate_bps': -5 is below 0"),
    "unsorted.csv": ("time_s,rate_bps\n0,1\n2,1\n1,1\n", "line 4, column 'time_s': time does not go forward"),
    "twice.csv": ("time_s,rate_bps\n0,1\n0,1\n", "line 3, column 'time_s': time does not go forward"),
    "single.csv": ("rate_bps\n1e6\n", "has 1 samples; a link is described by two or more"),
    "single.json": (samples([1.0], [1e6]), "has 1 samples"),
    "none.json": ("[]", "has 0 samples"),
    "header.csv": ("rate_bps\n", "has 0 samples"),
    "nan.csv": ("rate_bps\n1e6\nnan\n", "line 3, column 'rate_bps': the cell is empty"),
    "infinite.csv": ("rate_bps\n1e6\ninf\n", "line 3, column 'rate_bps': 'inf' is not a number"),
    "word.csv": ("rate_bps\n1e6\nfast\n", "line 3, column 'rate_bps': 'fast' is not a number"),
    "cells.csv": ("rate_bps,duration_s\n1e6,1\n1e6\n", "line 3: found 1 cells where the header has 2"),
    "zero.csv": ("rate_bps\n0\n0\n", "is zero throughout"),
    "instant.csv": (with_durations([1, 0, 1], RATES), "sample 2 lasts 0 s at 3e+06 bit/s"),
    "empty.csv": ("", "is empty"),
    "empty.json": ("", "is not JSON"),
    "column.csv": ("rate,time_s\n1,0\n2,1\n", "no column 'rate_bps'; did you mean 'rate'?"),
    "object.json": ('{"duration_ms": 1}', "expected a list of objects with a number 'duration_ms' each"),
    "keys.json": ('[{"duration_ms": 1, "kbps": 2}]', "sample 1 has no number 'bandwidth_kbps'"),
    "text.json": ('[{"duration_ms": 1, "bandwidth_kbps": "x"}]', "sample 1 has no number 'bandwidth_kbps'"),
    "numbers.json": ("[1, 2]", "sample 1 has no number 'duration_ms'"),
    "nan.json": (samples([1, 1], [1e6, math.nan]), "sample 2 lasts 1 s at nan bit/s"),
    "negative.json": (samples([1, 1], [1e6, -1e6]), "sample 2 lasts 1 s at -1e+06 bit/s"),
    "huge.json": ('[{"duration_ms": 1' + "0" * 400 + "}]", "sample 1 has no number 'duration_ms'"),
    "deep.json": ("[" * 100_000, "is not JSON"),
    "cut.json": (samples(DURATIONS, RATES)[:-20], "is not JSON"),
    "milliseconds.csv": ("time_s,rate_bps\n0,1\n1e12,1\n", "give times in seconds, or a part of the log"),
    "format.txt": ("rate_bps\n1\n2\n", "the name does not tell the format"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_log_is_one_sentence_that_names_the_file_and_the_spot(name: str, tmp_path: Path) -> None:
    text, sentence = BAD[name]
    path = csv(tmp_path, text, name)
    with pytest.raises(BadTrace) as raised:
        read_log(path)

    assert str(raised.value).startswith(str(path))
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_log_that_is_cut_off_says_so(tmp_path: Path) -> None:
    path = tmp_path / "cut.csv.gz"
    path.write_bytes(
        gzip.compress(("rate_bps\n" + "".join(f"{n * 7919 % 10007}\n" for n in range(2000))).encode())[:-80]
    )
    with pytest.raises(BadTrace, match=r"cut\.csv\.gz.*the compressed data ends early"):
        read_log(path)


def test_a_parquet_file_names_the_row(tmp_path: Path) -> None:
    path = tmp_path / "log.parquet"
    pq.write_table(pa.table({"rate_bps": [1e6, -1.0]}), path)
    with pytest.raises(BadTrace, match=r"log\.parquet, column 'rate_bps': row 2: -1.0 is below 0"):
        read_log(path)


@pytest.mark.parametrize("name", ["nowhere.json", "nowhere.csv", "nowhere.parquet"])
def test_a_log_that_is_not_there_says_so(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="cannot be opened: No such file or directory"):
        read_log(tmp_path / name)
