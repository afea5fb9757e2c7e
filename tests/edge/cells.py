"""Instances for the tests of edge: one small enough to follow by hand, and random ones of every kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from takeup.edge.model import Instance, Radio
from takeup.edge.traces.files import CQI_64QAM
from takeup.edge.traces.generators import paper_setting, radio_tight_setting


def two_devices() -> Instance:
    """Two devices and two subcarriers of 1 Hz with noise of 1 W: gains are ratios. Local runs cost 32 J and 4 J."""
    return Instance(
        gains=np.array([[4.0, 1.0], [2.0, 2.0]]),
        bits=np.array([2.0, 2.0]),
        cycles=np.array([8.0, 4.0]),
        deadlines_s=np.array([4.0, 4.0]),
        radio=Radio(bandwidth_hz=1.0, noise_w_per_hz=1.0, max_power_w=10.0, circuit_power_w=0.1),
        edge_hz=8.0,
        local_hz=10.0,
        chip_constant=1.0,
    )


def instances(most_devices: int = 8, most_subcarriers: int = 5) -> st.SearchStrategy[Instance]:
    """Random instances of both settings, with one core or several from scarce to plentiful; a third has extras."""

    def draw(
        seed: int, num_devices: int, num_subcarriers: int, is_paper: bool, speed: float, num_cores: int
    ) -> Instance:
        random = np.random.default_rng(seed)
        if is_paper:
            plain = paper_setting(random, num_devices, num_subcarriers, 600e6 * speed)
        else:
            plain = radio_tight_setting(random, num_devices, num_subcarriers, 4e9 * speed)
        return plain if num_cores == 1 else with_extras(plain, random, num_cores)

    return st.builds(
        draw,
        seed=st.integers(0, 2**32 - 1),
        num_devices=st.integers(0, most_devices),
        num_subcarriers=st.integers(1, most_subcarriers),
        is_paper=st.booleans(),
        speed=st.sampled_from([0.3, 1.0, 3.0]),
        num_cores=st.sampled_from([1, 1, 2]),
    )


def with_extras(instance: Instance, random: np.random.Generator, num_cores: int) -> Instance:
    """The same with more cores, tasks that are released one after the other, and values of tasks."""
    return replace(
        instance,
        num_cores=num_cores,
        releases_s=instance.deadlines_s * random.uniform(0.0, 0.5, instance.num_devices),
        values_j=instance.local_j * random.uniform(0.0, 1.0, instance.num_devices),
    )


def optioned_instances(most_devices: int = 6, most_subcarriers: int = 6) -> st.SearchStrategy[Instance]:
    """Random instances whose groups must be runs, or of certain sizes, or whose radio has modulations."""

    def choose(instance: Instance, contiguous: bool, sizes: tuple[int, ...], modulated: bool) -> Instance:
        radio = replace(instance.radio, modulations=CQI_64QAM if modulated else ())
        return replace(instance, contiguous=contiguous, group_sizes=sizes, radio=radio)

    return st.builds(
        choose,
        instance=instances(most_devices, most_subcarriers),
        contiguous=st.booleans(),
        sizes=st.sampled_from([(), (1, 2, 4), (2, 3), (3,)]),
        modulated=st.booleans(),
    )
