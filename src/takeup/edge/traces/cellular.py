"""Random cells by 3GPP TR 38.901: urban micro and macro, in sight or not, shadowed, with fading correlated over blocks.

Path loss, probabilities of sight, shadowing, delay spread and Rice factors are those of tables 7.4.1-1, 7.4.2-1 and
7.5-6. Heights are those of the scenario, devices are outdoors on the ground. The channel has paths with exponential
delays, and one direct path where the antenna is in sight, so that neighbouring blocks fade together.
"""

from dataclasses import dataclass

import numpy as np

from takeup.core.arrays import Bools, Floats
from takeup.edge.model import Instance, Radio

NOISE_W_PER_HZ = 10 ** ((-174 + 5) / 10) / 1000  # thermal, and 5 dB of the receiver
CARRIER_GHZ, BLOCK_HZ = 3.5, 360e3  # a block of 12 subcarriers of 30 kHz
DEVICE_M, LIGHT_M_PER_S, NUM_PATHS = 1.5, 3e8, 24


@dataclass(frozen=True, slots=True)
class Scenario:
    """Numbers of a scenario; pairs are for in sight and not."""

    antenna_m: float
    radius_m: float
    sight_m: float  # how fast the probability of sight falls
    loss_db: tuple[float, float, float]  # in sight: at 1 m and 1 GHz, by decade, and 2 by decade beyond the break
    hidden_db: tuple[float, float, float]  # not in sight: at 1 m, by decade of distance, by decade of frequency
    shadow_db: tuple[float, float]
    delay: tuple[tuple[float, float], tuple[float, float]]  # mean and deviation of the logarithm of the spread
    rice_db: tuple[float, float]


_LOG_FREQUENCY = float(np.log10(1 + CARRIER_GHZ))
URBAN_MICRO = Scenario(
    antenna_m=10.0,
    radius_m=200.0,
    sight_m=36.0,
    loss_db=(32.4, 21.0, 9.5),
    hidden_db=(22.4, 35.3, 21.3),
    shadow_db=(4.0, 7.82),
    delay=((-0.24 * _LOG_FREQUENCY - 7.14, 0.38), (-0.24 * _LOG_FREQUENCY - 6.83, 0.16 * _LOG_FREQUENCY + 0.28)),
    rice_db=(9.0, 5.0),
)
URBAN_MACRO = Scenario(
    antenna_m=25.0,
    radius_m=500.0,
    sight_m=63.0,
    loss_db=(28.0, 22.0, 9.0),
    hidden_db=(13.54, 39.08, 20.0),
    shadow_db=(4.0, 6.0),
    delay=(
        (-6.955 - 0.0963 * float(np.log10(CARRIER_GHZ)), 0.66),
        (-6.28 - 0.204 * float(np.log10(CARRIER_GHZ)), 0.39),
    ),
    rice_db=(9.0, 3.5),
)


def umi_setting(
    random: np.random.Generator, num_devices: int, num_subcarriers: int = 106, edge_hz: float = 3e9
) -> Instance:
    """A street canyon of 200 m with the antenna at 10 m, 4 cores, and tasks from speech to vision."""
    return _cell(URBAN_MICRO, random, num_devices, num_subcarriers, edge_hz)


def uma_setting(
    random: np.random.Generator, num_devices: int, num_subcarriers: int = 106, edge_hz: float = 3e9
) -> Instance:
    """A cell of 500 m with the antenna above the roofs at 25 m, 4 cores, and tasks from speech to vision."""
    return _cell(URBAN_MACRO, random, num_devices, num_subcarriers, edge_hz)


def _cell(
    scenario: Scenario, random: np.random.Generator, num_devices: int, num_subcarriers: int, edge_hz: float
) -> Instance:
    """Tasks of 0.2 to 4 Mbit and 100 to 1000 cycles per bit, all scales alike, due in 0.2 to 1 s.

    One in fourteen has more cycles than its device can do in time; if it does not offload, the miss costs 1 J.
    """
    bits = np.exp(random.uniform(np.log(2e5), np.log(4e6), num_devices))
    return Instance(
        gains=channel_gains(scenario, random, num_devices, num_subcarriers),
        bits=bits,
        cycles=bits * np.exp(random.uniform(np.log(100), np.log(1000), num_devices)),
        deadlines_s=random.uniform(0.2, 1.0, num_devices),
        radio=Radio(BLOCK_HZ, NOISE_W_PER_HZ, max_power_w=0.2, circuit_power_w=0.1),
        edge_hz=edge_hz,
        local_hz=3e9,
        chip_constant=2e-28,
        miss_penalty_j=1.0,
        num_cores=4,
    )


def channel_gains(scenario: Scenario, random: np.random.Generator, num_devices: int, num_subcarriers: int) -> Floats:
    """The power gain of every device and block; devices lie uniformly in the disc, at least 10 m from the antenna."""
    ground_m = np.sqrt(random.uniform(10.0**2, scenario.radius_m**2, num_devices))
    sight = random.random(num_devices) < sight_probability(scenario, ground_m)
    deviation_db = np.where(sight, *scenario.shadow_db)
    loss_db = path_loss_db(scenario, ground_m, sight) + deviation_db * random.standard_normal(num_devices)
    faded: Floats = 10 ** (-loss_db[:, None] / 10) * _fading(scenario, random, sight, num_subcarriers)
    return faded


def sight_probability(scenario: Scenario, ground_m: Floats) -> Floats:
    """That the antenna is in sight at these distances on the ground."""
    near = np.minimum(1.0, 18.0 / ground_m)
    return near + np.exp(-ground_m / scenario.sight_m) * (1.0 - near)


def path_loss_db(scenario: Scenario, ground_m: Floats, sight: Bools) -> Floats:
    """The path loss without shadowing."""
    height_m = scenario.antenna_m - DEVICE_M
    distance_m = np.hypot(ground_m, height_m)
    break_m = 4 * (scenario.antenna_m - 1) * (DEVICE_M - 1) * CARRIER_GHZ * 1e9 / LIGHT_M_PER_S
    at_one_m, by_decade, beyond = scenario.loss_db
    frequency_db = 20 * np.log10(CARRIER_GHZ)
    near_db = at_one_m + by_decade * np.log10(distance_m) + frequency_db
    far_db = at_one_m + 40 * np.log10(distance_m) + frequency_db - beyond * np.log10(break_m**2 + height_m**2)
    sight_db = np.where(ground_m <= break_m, near_db, far_db)
    hidden_at_one_m, hidden_by_decade, by_frequency = scenario.hidden_db
    hidden_db = hidden_at_one_m + hidden_by_decade * np.log10(distance_m) + by_frequency * np.log10(CARRIER_GHZ)
    loss_db: Floats = np.where(sight, sight_db, np.maximum(sight_db, hidden_db))
    return loss_db


def _fading(scenario: Scenario, random: np.random.Generator, sight: Bools, num_subcarriers: int) -> Floats:
    """Power gains with a mean of one, correlated over the blocks by the delays of the paths."""
    num_devices = len(sight)
    means, deviations = (np.where(sight, scenario.delay[0][at], scenario.delay[1][at]) for at in (0, 1))
    spread_s = 10 ** (means + deviations * random.standard_normal(num_devices))
    delays_s = random.exponential(size=(num_devices, NUM_PATHS)) * spread_s[:, None]
    real, imaginary = random.standard_normal((2, num_devices, NUM_PATHS))
    paths = (real + 1j * imaginary) / np.sqrt(2 * NUM_PATHS)
    turns = np.exp(-2j * np.pi * delays_s[:, :, None] * BLOCK_HZ * np.arange(num_subcarriers))
    scattered = np.einsum("dp,dpb->db", paths, turns)
    rice = np.where(sight, 10 ** (random.normal(*scenario.rice_db, num_devices) / 10), 0.0)[:, None]
    direct = np.exp(2j * np.pi * random.random(num_devices))[:, None]
    amplitude = np.sqrt(rice / (1 + rice)) * direct + scattered / np.sqrt(1 + rice)
    gains: Floats = np.abs(amplitude) ** 2
    return gains
