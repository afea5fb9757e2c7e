"""The arrays of the kernels: tasks as Python gives them, the board on which plans are made, and the outcome.

A board holds several plans, which kernels identify by index. Each offloading device has a *seat* in a plan. A row of
`groups` has the subcarriers of a seat, from the best on; `cheapest_s` is the duration of its cheapest upload without a
limit, and `least_j` the energy of that; `cost_j` is what it costs until its start. `order` is the order on the cores.
`seat_of` and `owner` are -1 for a device that runs locally and for a subcarrier that is free.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Bools, Floats, Ints

Records = npt.NDArray[Any]

NO_INDEX = -1
BY_ALL = -1  # a metric: all of them, then search


def _record(floats: str, counts: str = "") -> np.dtype[np.void]:
    kinds: tuple[tuple[str, type], ...] = ((floats, np.float64), (counts, np.int64))
    return np.dtype([(name, kind) for names, kind in kinds for name in names.split()], align=True)


DEVICE = _record("bits_per_hz due_s run_s release_s worth_j reach_j")  # reach: what it saves alone at the site
CHANNEL = _record("log inverse", "best")  # of the ratio to noise; the subcarrier of this rank
SEAT = _record("start_s cost_j cheapest_s least_j new_s wish_j", "device size order wish_at")
WISH = _record("limit_s gain_j", "device size")


class TaskArrays(NamedTuple):
    """Instances one after the other, each with `num_devices` and `num_subcarriers`. Bits are in hertz seconds.

    `ratios` to noise are by instance, device and subcarrier; the last three have one entry for each instance.
    """

    num_devices: Ints
    num_subcarriers: Ints
    ratios: Floats
    bits_per_hz: Floats
    due_s: Floats
    run_s: Floats
    release_s: Floats
    worth_j: Floats
    max_power_w: Floats
    circuit_power_w: Floats
    num_cores: Ints


class InitialPlans(NamedTuple):
    """Initial plans, one per row: the devices that should offload, and the owner of each subcarrier, if known."""

    wanted: Bools
    owner: Ints


class SearchEffort(NamedTuple):
    """Search effort: one metric only (`BY_ALL`: all of them, then search), and the limits of the search."""

    metric: int
    most_tried: int
    most_searched: int
    most_work: int


class CellArrays(NamedTuple):
    """Devices and their channels. A row of `ranking` has the devices that could save anything, the best first."""

    max_power_w: float
    circuit_power_w: float
    longest_s: float
    devices: Records
    channels: Records
    ranking: Ints


class PlanArrays(NamedTuple):
    """Partial plans, and scratch arrays to change them. `work` counts the uploads that were priced."""

    seats: Records
    groups: Ints
    seat_of: Ints
    owner: Ints
    num_seated: Ints
    taken_s: Floats
    group: Ints
    work: Ints


class SearchScratch(NamedTuple):
    """Scratch arrays of a search: banned devices, wanted groups, plans seen before, prices of changed groups."""

    banned: Bools
    chosen: Ints
    wishes: Records
    wanted: Ints
    seen: npt.NDArray[np.uint64]
    less_j: Floats
    more_j: Floats


class PlanRoles(NamedTuple):
    """Plan index of each role. Passed to kernels as arguments: numba would compile again for each constant."""

    core: int = 0
    base: int = 1
    second: int = 2
    trial: int = 3
    full: int = 4
    best: int = 5


class KernelState(NamedTuple):
    """All data that kernels work on."""

    cell: CellArrays
    plans: PlanArrays
    room: SearchScratch
    roles: PlanRoles


class FinishedPlans(NamedTuple):
    """Finished plans of all instances: owner and power per subcarrier, times per device (nan for local devices).

    `can_save` is for devices that would save something if they were alone.
    """

    owners: Ints
    powers_w: Floats
    upload_s: Floats
    start_s: Floats
    spent_j: Floats
    can_save: Bools
    work: Ints
