"""Random instances: the cell of the paper, and a wider one in which the radio is scarce.

Devices lie uniformly in a disc, at least 10 m from the antenna; every subcarrier fades by itself, with an exponential
power gain (Rayleigh). The random generator is handed in, so the same one gives the same instance.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from takeup.edge.model import Instance, Radio
from takeup.errors import BadInput, UnknownName

__all__ = ["SETTINGS", "generate", "paper_setting", "radio_tight_setting"]

Floats = npt.NDArray[np.float64]

NEAREST_M = 10.0
NOISE_W_PER_HZ = 10 ** (-174 / 10) / 1000


def paper_setting(
    random: np.random.Generator, num_devices: int, num_subcarriers: int = 4, edge_hz: float = 600e6
) -> Instance:
    """A cell of 200 m and 1 MHz, tasks of about a kilobit and 18000 cycles per bit (Yu et al., GLOBECOM 2016)."""
    _check_counts(num_devices, num_subcarriers)
    distances_m = _distances(random, num_devices, 200.0)
    loss_db = 20 * np.log10(distances_m / 1000) + 20 * np.log10(2000.0) + 32.45  # free space at 2 GHz
    bits = random.uniform(900, 1100, num_devices)
    return Instance(
        gains=_faded(random, loss_db, num_subcarriers),
        bits=bits,
        cycles=18_000 * bits,
        deadlines_s=random.uniform(0.05, 0.15, num_devices),
        radio=Radio(1e6 / num_subcarriers, NOISE_W_PER_HZ, max_power_w=1.0, circuit_power_w=0.05),
        edge_hz=edge_hz,
        local_hz=1e9,
        chip_constant=1e-24,
    )


def radio_tight_setting(
    random: np.random.Generator, num_devices: int, num_subcarriers: int = 16, edge_hz: float = 8e9
) -> Instance:
    """A cell of 500 m, blocks of 180 kHz, tasks of 100 to 400 kbit: uploads take long and need several blocks."""
    _check_counts(num_devices, num_subcarriers)
    distances_m = _distances(random, num_devices, 500.0)
    bits = random.uniform(100e3, 400e3, num_devices)
    return Instance(
        gains=_faded(random, 128.1 + 37.6 * np.log10(distances_m / 1000), num_subcarriers),
        bits=bits,
        cycles=1_000 * bits,
        deadlines_s=random.uniform(0.2, 0.8, num_devices),
        radio=Radio(180e3, NOISE_W_PER_HZ, max_power_w=0.2, circuit_power_w=0.05),
        edge_hz=edge_hz,
        local_hz=3e9,
        chip_constant=1e-27,
    )


SETTINGS = {"paper": paper_setting, "radio_tight": radio_tight_setting}


def generate(setting: str, random: np.random.Generator, num_devices: int) -> Instance:
    """An instance of the setting of this name."""
    if setting not in SETTINGS:
        raise UnknownName("edge setting", setting, SETTINGS)
    return SETTINGS[setting](random, num_devices)


def _check_counts(num_devices: int, num_subcarriers: int) -> None:
    if num_devices < 0 or num_subcarriers < 1:
        raise BadInput(
            f"{num_devices} devices and {num_subcarriers} subcarriers make no cell; give no fewer than 0 and 1 of them"
        )


def _distances(random: np.random.Generator, count: int, radius_m: float) -> Floats:
    """Uniform over the area, so the square of the distance is uniform."""
    return np.sqrt(random.uniform(NEAREST_M**2, radius_m**2, count))


def _faded(random: np.random.Generator, loss_db: Floats, num_subcarriers: int) -> Floats:
    fading = np.maximum(random.exponential(size=(len(loss_db), num_subcarriers)), 1e-12)  # a gain of zero has no log
    gains: Floats = 10 ** (-loss_db[:, None] / 10) * fading
    return gains
