"""Instances for the tests of edge: one small enough to follow by hand, and random ones of every kind."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from takeup.edge.model import Instance, Radio
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
    """Random instances of both settings, with a CPU from scarce to plentiful."""

    def draw(seed: int, num_devices: int, num_subcarriers: int, is_paper: bool, speed: float) -> Instance:
        random = np.random.default_rng(seed)
        if is_paper:
            return paper_setting(random, num_devices, num_subcarriers, 600e6 * speed)
        return radio_tight_setting(random, num_devices, num_subcarriers, 4e9 * speed)

    return st.builds(
        draw,
        seed=st.integers(0, 2**32 - 1),
        num_devices=st.integers(0, most_devices),
        num_subcarriers=st.integers(1, most_subcarriers),
        is_paper=st.booleans(),
        speed=st.sampled_from([0.3, 1.0, 3.0]),
    )
