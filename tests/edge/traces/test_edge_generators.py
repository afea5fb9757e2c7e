"""Random instances: reproducible, in range, and with the physics the settings state."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from takeup.edge.model import Instance
from takeup.edge.traces.generators import SETTINGS, generate, paper_setting, radio_tight_setting
from takeup.errors import BadInput, UnknownName


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_same_seed_gives_the_same_instance(setting: str) -> None:
    first, second = (generate(setting, np.random.default_rng(5), 7) for _ in range(2))

    assert np.array_equal(first.gains, second.gains)
    assert np.array_equal(first.deadlines_s, second.deadlines_s)
    assert first.num_devices == 7


def test_the_paper_setting_is_balanced_between_radio_and_cpu() -> None:
    instance = paper_setting(np.random.default_rng(0), 20_000)

    assert instance.num_subcarriers * instance.radio.bandwidth_hz == 1e6
    assert instance.run_s.mean() == pytest.approx(0.03, rel=0.01)
    assert instance.local_j.min() > 0.18
    assert instance.local_j.max() < 3.2
    assert not instance.too_slow.any()


def test_fading_has_mean_one_and_devices_fill_the_disc() -> None:
    instance = paper_setting(np.random.default_rng(0), 100_000, 1)
    distances_m = 1000 / np.sqrt(instance.gains[:, 0] * 10**3.245 * 2000**2)  # free space, solved for the distance
    share_inside = np.mean(distances_m < 200)

    # d / sqrt(fading) < R means fading > u with u = d^2 / R^2 uniform on (0, 1): the mean of exp(-u)
    assert share_inside == pytest.approx(1 - np.exp(-1), abs=0.01)


def shares_of_time_uploading(instance: Instance) -> npt.NDArray[np.float64]:
    """What an upload over each single subcarrier, at full power, takes of the time before the task must run."""
    rates_bps = instance.radio.bandwidth_hz * np.log2(1 + instance.gain_to_noise * instance.radio.max_power_w)
    shares: npt.NDArray[np.float64] = (instance.bits / (instance.deadlines_s - instance.run_s))[:, None] / rates_bps
    return shares


def test_uploads_are_short_in_the_paper_setting_and_long_in_the_radio_tight_one() -> None:
    paper = shares_of_time_uploading(paper_setting(np.random.default_rng(0), 1000))
    tight = shares_of_time_uploading(radio_tight_setting(np.random.default_rng(0), 1000))

    assert np.median(paper) < 0.01
    assert 0.1 < np.median(tight) < 0.5
    assert (tight > 1).mean() > 0.01  # these need a second subcarrier


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_device_is_too_slow_for_its_task_only_where_a_miss_has_a_price(setting: str) -> None:
    instance = generate(setting, np.random.default_rng(0), 1000)
    local_j = instance.local_j[~instance.too_slow]

    assert instance.too_slow.mean() < (0.1 if setting in ("umi", "uma") else 1e-9)
    assert not instance.too_slow.any() or instance.miss_penalty_j > 5 * np.mean(local_j)


def test_a_cell_without_devices_is_a_cell() -> None:
    assert generate("paper", np.random.default_rng(0), 0).num_devices == 0


@pytest.mark.parametrize(("num_devices", "num_subcarriers"), [(-1, 4), (4, 0)])
def test_impossible_counts_are_refused(num_devices: int, num_subcarriers: int) -> None:
    with pytest.raises(BadInput, match="make no cell"):
        paper_setting(np.random.default_rng(0), num_devices, num_subcarriers)


def test_an_unknown_setting_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="did you mean 'paper'"):
        generate("papr", np.random.default_rng(0), 3)
