"""Instances from files, from channel logs and with arrivals: kept exactly, or refused clearly."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from edge.cells import instances, optioned_instances, two_devices
from takeup.edge.model import Instance, Radio
from takeup.edge.traces.files import (
    CQI_64QAM,
    ChannelColumns,
    ChannelLog,
    load_instance,
    read_channel,
    save_instance,
    with_channel,
)
from takeup.edge.traces.generators import generate, modern_setting, paper_setting, poisson_times, with_arrivals
from takeup.errors import BadInput, BadTrace, OutputFailed

EVERY_FORMAT = pytest.mark.parametrize("suffix", ["json", "npz"])


def assert_equal(first: Instance, second: Instance) -> None:
    for field in fields(Instance):
        one, other = getattr(first, field.name), getattr(second, field.name)
        assert np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other, field.name


# Files ----------------------------------------------------------------------------------------------------------------


@EVERY_FORMAT
@given(instance=optioned_instances() | instances())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read_back_bit_by_bit(tmp_path: Path, suffix: str, instance: Instance) -> None:
    path = tmp_path / f"cell.{suffix}"
    save_instance(path, instance)

    assert_equal(load_instance(path), instance)


@EVERY_FORMAT
def test_the_same_instance_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    paths = [tmp_path / f"{name}.{suffix}" for name in ("first", "second")]
    for path in paths:
        save_instance(path, two_devices())

    assert paths[0].read_bytes() == paths[1].read_bytes()


@EVERY_FORMAT
def test_numbers_from_numpy_can_be_saved(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"cell.{suffix}"
    save_instance(path, replace(two_devices(), edge_hz=np.float64(8.0), num_cores=int(np.int64(2))))

    assert load_instance(path).num_cores == 2


def edited(tmp_path: Path, **changes: Any) -> Path:
    """A file of two devices in which some keys are changed, or left out where the value is None."""
    path = tmp_path / "cell.json"
    save_instance(path, two_devices())
    content = json.loads(path.read_text("utf-8")) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}), "utf-8")
    return path


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bits": [2.0, -1.0]}, r"bits\[1\] is -1; every entry of bits must be a finite number above zero"),
        ({"gains": [[4.0, -1.0], [2.0, 2.0]]}, r"gains\[0, 1\] is -1"),
        ({"gains": [[4.0, math.nan], [2.0, 2.0]]}, r"gains\[0, 1\] is nan"),
        ({"gains": [[4.0], [2.0, 2.0]]}, "gains cannot be read as numbers"),
        ({"gains": [[], []]}, "there is no subcarrier"),
        ({"gains": "many"}, "gains cannot be read as numbers"),
        ({"deadlines_s": [4.0, 0.0]}, r"deadlines_s\[1\] is 0"),
        ({"num_subcarriers": 3}, "gains are for 2 subcarriers, num_subcarriers is 3"),
        ({"cycles": None}, "the key 'cycles' is missing"),
        ({"edge_hz": None}, "the key 'edge_hz' is missing; add it"),
        ({"radio": {"bandwidth_hz": 1.0}}, "the key 'radio.noise_w_per_hz' is missing"),
        ({"edge_hz": "fast"}, "'edge_hz' is 'fast'; expected a valid number"),
        ({"edge_hz": math.inf}, "edge_hz is inf"),
        ({"num_cores": 1.5}, "'num_cores' is 1.5; expected"),
        ({"group_sizes": [0]}, "every size must be at least one subcarrier"),
        ({"version": 2}, "'version' is 2; expected 1"),
        ({"speed": 1}, "there is no key 'speed'"),
    ],
)
def test_a_senseless_file_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = edited(tmp_path, **changes)

    with pytest.raises(BadTrace, match=message):
        load_instance(path)


@EVERY_FORMAT
def test_half_a_file_is_refused(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"cell.{suffix}"
    save_instance(path, two_devices())
    whole = path.read_bytes()
    for size in (0, 1, len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:size])

        with pytest.raises(BadTrace, match=f"cell.{suffix}"):
            load_instance(path)


@pytest.mark.parametrize("text", ["[1, 2]", "[" * 100_000, "null"])
def test_json_that_is_no_instance_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cell.json"
    path.write_text(text, "utf-8")

    with pytest.raises(BadTrace, match=r"cell\.json"):
        load_instance(path)


def test_objects_in_npz_are_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "cell.npz"
    np.savez(path, head=np.array([object()], dtype=object), allow_pickle=True)

    with pytest.raises(BadTrace, match="Object arrays cannot be loaded"):
        load_instance(path)


@pytest.mark.parametrize(
    ("head", "message"), [(None, "has no 'head'"), ("[", "not a JSON object"), ("3", "not a JSON object")]
)
def test_npz_needs_a_head(tmp_path: Path, head: str | None, message: str) -> None:
    path = tmp_path / "cell.npz"
    np.savez(path, **{"gains" if head is None else "head": np.array(head or 1.0)})  # type: ignore[arg-type]

    with pytest.raises(BadTrace, match=message):
        load_instance(path)


def test_an_array_by_itself_is_no_instance(tmp_path: Path) -> None:
    path = tmp_path / "cell.npz"
    with path.open("wb") as file:
        np.save(file, np.ones(3))

    with pytest.raises(BadTrace, match="expected a file that save_instance wrote"):
        load_instance(path)


@EVERY_FORMAT
def test_a_file_that_is_not_there_is_named(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(BadTrace, match="cannot be opened"):
        load_instance(tmp_path / f"nothing.{suffix}")


def test_an_unknown_format_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match=r"expected it to end in .json or .npz"):
        save_instance(tmp_path / "cell.txt", two_devices())

    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", "utf-8")

    with pytest.raises(OutputFailed, match="cannot write"):
        save_instance(tmp_path / "file" / "cell.json", two_devices())


# Channels -------------------------------------------------------------------------------------------------------------

CORK = """Timestamp,Speed,SNR,CQI,UL_bitrate
2019.12.16_13.40.04,0,1.0,15,72
2019.12.16_13.40.05,0,7.0,15,0
2019.12.16_13.40.05,0,10.0,15,0
2019.12.16_13.40.06,0,-,9,0
2019.12.16_13.40.08,0,-,-,0
2019.12.16_13.40.09,0,-3.0,11,0
"""


def log_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "drive.csv"
    path.write_text(text, "utf-8")
    return path


def test_a_log_gives_ratios_over_time(tmp_path: Path) -> None:
    log = read_channel(log_file(tmp_path, CORK))

    assert log.name == "drive"
    assert log.times_s.tolist() == [0.0, 1.0, 2.0, 5.0]
    assert log.ratios.tolist() == pytest.approx([10**0.1, 10.0, CQI_64QAM[8].least_ratio, 10**-0.3])


def test_other_names_of_columns_and_times_in_seconds_can_be_given(tmp_path: Path) -> None:
    path = log_file(tmp_path, "t,sinr\n10.0,0\n10.5,20\n")
    log = read_channel(path, ChannelColumns(time="t", snr_db="sinr"))

    assert log.times_s.tolist() == [0.0, 0.5]
    assert log.ratios.tolist() == pytest.approx([1.0, 100.0])


def test_a_log_begins_again_after_its_end() -> None:
    log = ChannelLog("hand", np.array([0.0, 1.0, 2.0]), np.array([5.0, 6.0, 7.0]))

    assert log.duration_s == 3.0
    assert log.ratios_at(np.array([0.0, 0.99, 1.0, 2.5, 3.1, 7.0])).tolist() == [5.0, 5.0, 6.0, 7.0, 5.0, 6.0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SNR,CQI\n1,2\n", "no column 'Timestamp'"),
        ("Timestamp,SNR,CQI\n0,good,3\n1,2,3\n", r"line 2, column 'SNR': 'good' is not a number"),
        ("Timestamp,SNR,CQI\n0,1,3\n1,500,3\n", r"line 3, column 'SNR': 500 is beyond 100"),
        ("Timestamp,SNR,CQI\n0,1,3\n1,nan,99\n", r"line 3, column 'CQI': 99 is beyond 15"),
        ("Timestamp,SNR,CQI\nnoon,1,3\n1,2,3\n", r"line 2, column 'Timestamp': 'noon' is no time"),
        ("Timestamp,SNR,CQI\ninf,1,3\n1,2,3\n", "'inf' is no time"),
        ("Timestamp,SNR,CQI\n5,1,3\n1,2,3\n", "time goes backwards"),
        ("Timestamp,SNR,CQI\n5,1,3\n6,-,0\n", "has 1 usable samples"),
        ("Timestamp,SNR,CQI\n5,-,-\n", "has 0 usable samples"),
    ],
)
def test_a_senseless_log_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(BadTrace, match=message):
        read_channel(log_file(tmp_path, text))


def test_gains_reach_the_logged_ratio_at_full_power_over_all_subcarriers() -> None:
    log = ChannelLog("flat", np.array([0.0, 1.0]), np.array([8.0, 8.0]))
    instance = with_channel(paper_setting(np.random.default_rng(0), 2000, 5), log, np.random.default_rng(1))

    ratios = instance.gain_to_noise * instance.radio.max_power_w / 5
    assert ratios.mean() == pytest.approx(8.0, rel=0.05)
    assert np.median(ratios) == pytest.approx(8.0 * math.log(2), rel=0.05)  # fading is exponential


def test_devices_follow_the_log_from_moments_of_their_own() -> None:
    log = ChannelLog("steps", np.array([0.0, 1.0]), np.array([1e-6, 1e6]))
    instance = with_channel(paper_setting(np.random.default_rng(0), 400), log, np.random.default_rng(1))

    assert np.mean(instance.gains.mean(axis=1) > instance.gains.mean()) == pytest.approx(0.5, abs=0.2)


# Arrivals -------------------------------------------------------------------------------------------------------------


def test_poisson_arrivals_come_at_the_rate_with_exponential_gaps() -> None:
    gaps_s = np.diff(poisson_times(np.random.default_rng(0), 20_000, 50.0))

    assert gaps_s.mean() == pytest.approx(1 / 50, rel=0.03)
    assert gaps_s.std() == pytest.approx(1 / 50, rel=0.03)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
def test_a_senseless_rate_is_refused(rate: float) -> None:
    with pytest.raises(BadInput, match="give a finite rate above zero"):
        poisson_times(np.random.default_rng(0), 3, rate)


def test_deadlines_count_from_the_arrival() -> None:
    instance = with_arrivals(two_devices(), np.array([1.0, 5.0]))

    assert instance.releases_s.tolist() == [1.0, 5.0]
    assert instance.deadlines_s.tolist() == [5.0, 9.0]
    assert instance.local_j.tolist() == two_devices().local_j.tolist()


def test_every_task_needs_an_arrival() -> None:
    with pytest.raises(BadInput, match="found 3 arrival times for 2 tasks"):
        with_arrivals(two_devices(), np.zeros(3))


# The modern setting ---------------------------------------------------------------------------------------------------


def test_the_modern_setting_is_a_carrier_of_100_mhz_and_phones_that_save_by_offloading() -> None:
    instance = generate("modern", np.random.default_rng(0), 200)

    assert instance.num_subcarriers * instance.radio.bandwidth_hz == pytest.approx(98.28e6)
    assert 0.05 < instance.local_j.mean() < 1.0
    ratios = instance.gain_to_noise.mean(axis=1) * instance.radio.max_power_w
    assert 10 < 10 * np.log10(np.median(ratios)) < 40  # dB over one block


def test_the_path_loss_is_that_of_a_street() -> None:
    near, far = (np.median(modern_setting(np.random.default_rng(seed), 3000, 1).gains) for seed in range(2))

    assert -10 * np.log10(np.median([near, far])) == pytest.approx(35.3 * np.log10(142) + 34.0 + 1.6, abs=1.5)


def test_a_radio_with_modulations_keeps_its_table(tmp_path: Path) -> None:
    radio = Radio(1.0, 1.0, 1.0)
    save_instance(tmp_path / "cell.npz", replace(two_devices(), radio=radio))

    assert load_instance(tmp_path / "cell.npz").radio == radio
