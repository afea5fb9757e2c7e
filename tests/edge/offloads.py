"""A small cell with an allocation by hand: three of four devices offload, with plenty of time."""

from __future__ import annotations

import numpy as np

from takeup.edge.model import Allocation, Instance, Radio

NAN = float("nan")


def four_devices(deadline_s: float = 3.0, run_s: float = 0.02) -> tuple[Instance, Allocation]:
    """Devices 0, 1 and 3 upload 10 kB in 50 ms and begin at 0.1, 0.2 and 0.3 s; device 2 runs its own task."""
    instance = Instance(
        gains=np.ones((4, 4)),
        bits=np.full(4, 80e3),
        cycles=np.full(4, run_s * 1e9),
        deadlines_s=np.full(4, deadline_s),
        radio=Radio(bandwidth_hz=1e6, noise_w_per_hz=1e-9, max_power_w=1.0),
        edge_hz=1e9,
        local_hz=1e9,
        chip_constant=1e-27,
    )
    allocation = Allocation(
        offloads=np.array([True, True, False, True]),
        owners=np.array([0, 1, 3, 3]),
        powers_w=np.full(4, 0.01),
        upload_s=np.array([0.05, 0.05, NAN, 0.05]),
        start_s=np.array([0.1, 0.2, NAN, 0.3]),
        energies_j=np.array([0.01, 0.01, 0.5, 0.02]),
    )
    return instance, allocation
