"""Random instances (the cell of the paper, one in which the radio is scarce, a present-day one), and arrival times."""

from dataclasses import replace

import numpy as np

from takeup.core.arrays import Floats
from takeup.edge.model import Instance, Radio
from takeup.edge.traces.cellular import uma_setting, umi_setting
from takeup.errors import BadInput, UnknownName

# Random instances: the cell of the paper, a wider one in which the radio is scarce, and a present-day one -------------
#
# Devices lie uniformly in a disc, at least 10 m from the antenna; every subcarrier fades by itself, with an exponential
# power gain (Rayleigh). The random generator is handed in, so the same one gives the same instance.

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


def modern_setting(
    random: np.random.Generator, num_devices: int, num_subcarriers: int = 273, edge_hz: float = 3e9
) -> Instance:
    """A street cell of 200 m at 3.5 GHz, 273 blocks in 100 MHz, images of 1 to 4 Mbit, phones of 3 GHz, 16 cores.

    Path loss is that of 3GPP TR 38.901 for a street canyon out of sight; the receiver adds 5 dB of noise. A task takes
    300 cycles per bit, as small networks for vision do. The chip constant is what a phone of some watts at full clock
    has.
    """
    _check_counts(num_devices, num_subcarriers)
    distances_m = _distances(random, num_devices, 200.0)
    loss_db = 35.3 * np.log10(distances_m) + 22.4 + 21.3 * np.log10(3.5)
    bits = random.uniform(1e6, 4e6, num_devices)
    return Instance(
        gains=_faded(random, loss_db, num_subcarriers),
        bits=bits,
        cycles=300 * bits,
        deadlines_s=random.uniform(0.5, 1.0, num_devices),
        radio=Radio(360e3, NOISE_W_PER_HZ * 10**0.5, max_power_w=0.2, circuit_power_w=0.1),
        edge_hz=edge_hz,
        local_hz=3e9,
        chip_constant=2e-28,
        num_cores=16,
    )


SETTINGS = {
    "paper": paper_setting,
    "radio_tight": radio_tight_setting,
    "modern": modern_setting,
    "umi": umi_setting,
    "uma": uma_setting,
}


def generate(setting: str, seed: int | np.random.Generator, num_devices: int) -> Instance:
    """An instance of the setting of this name."""
    if setting not in SETTINGS:
        raise UnknownName("edge setting", setting, SETTINGS)
    return SETTINGS[setting](np.random.default_rng(seed), num_devices)


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


# Tasks that arrive over time: random arrival times, and instances that have them -----------------------------------
#
# In an instance with arrivals a task is released when it arrives, and its deadline counts from then on.


def poisson_times(random: np.random.Generator, num_tasks: int, tasks_per_s: float) -> Floats:
    """When tasks arrive that come independently of each other, in seconds from now."""
    if not (np.isfinite(tasks_per_s) and tasks_per_s > 0):
        raise BadInput(f"{tasks_per_s:g} tasks per second never come, or all at once; give a finite rate above zero")
    return np.cumsum(random.exponential(1 / tasks_per_s, num_tasks))


def with_arrivals(instance: Instance, times_s: Floats) -> Instance:
    """The same tasks, each arriving at its time, with as much time as before until its deadline."""
    if times_s.shape != (instance.num_devices,):
        raise BadInput(f"found {times_s.size} arrival times for {instance.num_devices} tasks; give one for each")
    windows_s = instance.deadlines_s - instance.releases_s
    return replace(instance, releases_s=times_s, deadlines_s=times_s + windows_s)
