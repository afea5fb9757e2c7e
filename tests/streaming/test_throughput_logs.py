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
    first, second = (
        csv(tmp_path, "rate_bps\n1000\n2000\n", "a.csv"),
        csv(tmp_path, "rate_bps\n3000\n4000\n5000\n", "b.csv"),
    )
    log = read_logs([first, second], "both")

    assert (log.name, log.starts) == ("both", (0, 2))
    assert [piece.tolist() for piece in log.per_second()] == [[1000.0, 2000.0], [3000.0, 4000.0, 5000.0]]


# Forms that are recognised by their content ---------------------------------------------------------------------------

QUERY = "CMCD=bl%3D4000%2Cbr%3D3000%2Cd%3D2000%2Cmtp%3D{mtp}%2Csid%3D%22{sid}%22{rest}"
RECOGNISED = {
    "pensieve": ("0.0\t1.5\n2.0\t3\n5.0\t1\n", [2.0, 3.0], [1.5e6, 3e6], "time (s) and rate (Mbit/s)"),
    "spaces.csv": ("0 1.5\n2 3\n5 1\n", [2.0, 3.0], [1.5e6, 3e6], "time (s) and rate (Mbit/s)"),
    "mahimahi.log": ("0\n10\n900\n1500\n", [1.0, 1.0], [3 * 12032.0, 12032.0], "every packet of 1504 bytes"),
    "cmcd.log": (
        "GET /a?"
        + QUERY.format(mtp=5000, sid="a", rest="")
        + " 200\nGET /b?"
        + QUERY.format(mtp=2500, sid="a", rest="%2Cbs")
        + " 200\n",
        [2.0, 2.4],
        [5e6, 2.5e6],
        "CMCD: mtp (kbit/s)",
    ),
    "cmcd.jsonl": (
        '{"mtp": 5000, "ts": 1000, "sid": "a"}\n{"mtp": 2500, "ts": 4000, "sid": "a", "bs": true}\n',
        [3.0, 3.0],
        [5e6, 2.5e6],
        "CMCD: mtp (kbit/s)",
    ),
    "cmcd.json": (
        '[{"cmcd": "br=3000,d=4000,mtp=5000"}, {"cmcd": "bs,d=4000,mtp=2500"}]',
        [4.0, 4.0],
        [5e6, 2.5e6],
        "CMCD: mtp (kbit/s)",
    ),
    "video_sent.csv": (
        "time (ns GMT),session_id,delivery_rate\n"
        "1000000000,x,125000\n3000000000,x,250000\n5000000000,x,125000\n9000000000,y,125000\n11000000000,y,125000\n",
        [2.0, 2.0, 2.0, 2.0, 2.0],
        [1e6, 2e6, 1e6, 1e6, 1e6],
        "delivery_rate (bytes/s)",
    ),
    "headers.jsonl": (
        '{"cmcd-object": "br=3000,d=4000,ot=v", "cmcd-request": "mtp=5000", "path": "/1"}\n'
        '{"cmcd-object": "br=128,d=4000,ot=a", "cmcd-request": "mtp=9000", "path": "/2"}\n'
        '{"cmcd-object": "br=3000,d=4000,ot=v", "cmcd-request": "mtp=2500", "cmcd-status": "bs", "path": "/3"}\n',
        [4.0, 4.0],
        [5e6, 2.5e6],
        "CMCD: mtp (kbit/s)",
    ),
    "hls.json": (
        json.dumps(
            [
                {"frag": {"duration": 4, "stats": {"loading": {"start": 0, "end": 2000}, "loaded": 500_000}}},
                {"event": "hlsError", "details": "bufferStalledError"},
                {
                    "data": {
                        "frag": {"duration": 4, "stats": {"loading": {"start": 3000, "end": 4000}, "loaded": 500_000}}
                    }
                },
            ]
        ),
        [3.0, 1.0],
        [2e6, 4e6],
        "events of hls.js",
    ),
    "dash.jsonl": (
        '{"type": "MediaSegment", "trequest": "2026-01-01T00:00:00.000Z", "_tfinish": "2026-01-01T00:00:02.000Z", '
        '"_mediaduration": 4, "trace": [{"b": [250000]}, {"b": [250000]}]}\n'
        '{"type": "MediaSegment", "trequest": "2026-01-01T00:00:03.000Z", "_tfinish": "2026-01-01T00:00:04.000Z", '
        '"_mediaduration": 4, "trace": [{"b": [500000]}]}\n{"type": "MPD", "trequest": "x"}\n'
        '{"event": "bufferStalled"}\n',
        [3.0, 1.0],
        [2e6, 4e6],
        "events of dash.js",
    ),
    "shaka.json": (
        '[{"t": 2000, "timeMs": 2000, "bytes": 500000, "duration": 4}, {"state": "buffering"}, '
        '{"t": 4000, "timeMs": 1000, "bytes": 500000, "duration": 4}]',
        [3.0, 1.0],
        [2e6, 4e6],
        "events of Shaka",
    ),
    "5g.csv": (
        "Timestamp,NetworkMode,DL_bitrate,State\n2019.12.16_13.40.04,5G,3000,D\n2019.12.16_13.40.05,5G,1000,D\n"
        "2019.12.16_13.40.06,5G,7,I\n",
        [1.0, 1.0],
        [3e6, 1e6],
        "DL_bitrate (kbit/s)",
    ),
    "curr_httpgetmt.csv": (
        "unit_id,dtime,fetch_time,bytes_total,bytes_sec,bytes_sec_interval,sequence\n"
        "7,2021-01-01 00:00:00,5000000,1,250000,250000,1\n7,2021-01-01 00:00:00,10000000,1,187500,125000,2\n"
        "9,2021-01-01 00:00:00,5000000,1,500000,500000,1\n",
        [5.0, 5.0, 5.0],
        [2e6, 1e6, 4e6],
        "FCC MBA: bytes_sec_interval",
    ),
}


@pytest.mark.parametrize("name", RECOGNISED)
def test_a_log_is_recognised_by_its_content_and_says_its_units(name: str, tmp_path: Path) -> None:
    text, durations_s, rates_bps, form = RECOGNISED[name]
    log = read_log(csv(tmp_path, text, name))

    assert log.durations_s == pytest.approx(durations_s)
    assert log.rates_bps == pytest.approx(rates_bps)
    assert form in log.form


@pytest.mark.parametrize(
    "name", ["cmcd.log", "cmcd.jsonl", "cmcd.json", "headers.jsonl", "hls.json", "dash.jsonl", "shaka.json"]
)
def test_stalls_that_a_player_reports_are_counted(name: str, tmp_path: Path) -> None:
    log = read_log(csv(tmp_path, RECOGNISED[name][0], name))

    assert [session.num_stalls for session in log.sessions] == [1]


def test_the_buffer_says_more_than_a_smoothed_throughput(tmp_path: Path) -> None:
    """A segment of 4 s at 1 Mbit/s took 8 s: the buffer fell from 12 to 8 s; the estimate of the player lags."""
    reports = [
        (0, 4000, ",su"),
        (4000, 4000, ",su"),
        (8000, 4000, ""),
        (12000, 4000, ""),
        (8000, 3000, ""),
        (10000, 2500, ""),
    ]
    lines = [f"br=1000,d=4000,bl={bl},mtp={mtp},sid=a{more}" for bl, mtp, more in reports]
    log = read_log(csv(tmp_path, "\n".join(lines), "cmcd.log"))

    assert log.rates_bps[3] == pytest.approx(0.5e6)
    assert log.sessions[0].took_s[3] == pytest.approx(8.0)
    assert log.durations_s[3] == pytest.approx(8.0)


def test_a_log_of_a_real_player_has_the_rate_of_its_link() -> None:
    data = Path(__file__).parent / "data"
    drive = np.concatenate(read_log(data / "drive.csv").per_second())
    log = read_log(data / "cmcd-dash.log")

    assert log.mean_bps == pytest.approx(1.3 * 400e3 * drive[:600].mean() / drive.mean(), rel=0.12)
    assert [session.num_stalls for session in log.sessions] == [0]
    assert log.sessions[0].is_known


SENT = (
    "time (ns GMT),session_id,size,delivery_rate\n"
    + "".join(f"{second}000000000,x,125000,250000\n" for second in range(0, 20, 2))
    + "".join(f"{second}000000000,y,125000,250000\n" for second in range(0, 20, 2))
)
EVENTS = (
    "time (ns GMT),session_id,index,event,buffer,cum_rebuf\n1,x,1,startup,2,0\n2,x,1,rebuffer,0,0\n3,x,1,play,2,1.5\n"
    "4,y,1,startup,2,0\n"
)


def test_stalls_of_puffer_sessions_come_from_the_second_table(tmp_path: Path) -> None:
    log = read_logs([csv(tmp_path, SENT, "video_sent.csv"), csv(tmp_path, EVENTS, "client_buffer.csv")], "both")

    assert {session.name: session.num_stalls for session in log.sessions} == {"x": 1, "y": 0}
    assert all(session.is_known for session in log.sessions)
    assert log.sessions[0].took_s == pytest.approx([0.5] * 10)


def test_a_table_of_stalls_alone_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="without throughput; give video_sent along with it"):
        read_log(csv(tmp_path, EVENTS, "client_buffer.csv"))


@pytest.mark.parametrize("text", ['[{"t": 1, "timeMs": "x"}]', '[{"timeMs": 5}]', '[{"frag": 3, "loading": 1}]'])
def test_a_broken_event_is_one_sentence(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="has an event that cannot be used"):
        read_log(csv(tmp_path, text, "events.json"))


def test_a_phone_log_with_another_clock_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="has a Timestamp that is none"):
        read_log(csv(tmp_path, "Timestamp,DL_bitrate\n13:40,5\n13:41,5\n"))


def test_events_without_a_finished_segment_say_so(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"no finished segment of dash\.js"):
        read_log(csv(tmp_path, '[{"type": "MPD", "trequest": "2026-01-01T00:00:00Z"}]', "events.json"))


def test_every_session_of_a_table_is_a_measurement(tmp_path: Path) -> None:
    assert read_log(csv(tmp_path, RECOGNISED["video_sent.csv"][0], "video_sent.csv")).starts == (0, 3)


def test_a_hole_in_a_log_is_not_taken_for_a_steady_link(tmp_path: Path) -> None:
    times = [*range(20), *range(4020, 4040)]
    log = read_log(csv(tmp_path, "time_s,rate_bps\n" + "".join(f"{time},1e6\n" for time in times)))

    assert log.duration_s == 40.0
    assert log.starts == (0, 20)
    assert "1 gaps in time left out" in log.form


def test_a_long_outage_is_not_taken_for_a_hole(tmp_path: Path) -> None:
    table = csv(tmp_path, "time_s,rate_bps\n" + "".join(f"{time},1e6\n" for time in range(20)) + "20,0\n300,1e6\n")
    lengths = csv(tmp_path, samples([1.0] * 20 + [280.0], [1e6] * 21), "log.json")

    assert read_log(table).duration_s == 301.0
    assert read_log(lengths).duration_s == 300.0


@pytest.mark.parametrize(("rate", "unit"), [("0.9", "0.9 bit/s"), ("2e13", "2e\\+13 bit/s")])
def test_a_rate_that_no_link_has_is_refused(rate: str, unit: str, tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=f"mean rate of {unit}.*check the unit"):
        read_log(csv(tmp_path, f"rate_bps\n{rate}\n{rate}\n"))


@pytest.mark.parametrize(
    "text", ['{"mtp": 5000, "d": 4000}\n{"mtp": 50', '{"mtp": "fast", "d": 4000}\n', '{"mtp": 5000}\n']
)
def test_a_broken_cmcd_report_is_one_sentence(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="CMCD report that cannot be used"):
        read_log(csv(tmp_path, text, "cmcd.log"))


@pytest.mark.parametrize("text", ["2800000\n3100000\n900000\n", "1700000000000\n1700000000010\n"])
def test_a_column_of_numbers_that_are_no_packets_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="give rates a header 'rate_bps'"):
        read_log(csv(tmp_path, text, "log.txt"))


def test_cmcd_without_a_throughput_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="no CMCD report with 'mtp'"):
        read_log(csv(tmp_path, "GET /a?CMCD=br%3D3000%2Cd%3D2000 200\n", "access.log"))


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
    "column.csv": ("rate,time_s\n1,0\n2,1\n", "has 'rate' and no 'rate_bps'; write rates in bit/s under that name"),
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
