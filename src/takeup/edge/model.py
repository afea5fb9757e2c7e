"""Data model of edge: devices with tasks and deadlines, the radio and CPU they share, an allocation, an answer.

Everything is in SI units. A device either runs its task itself, at the slowest clock that meets the deadline, or
*offloads* it: uploads the bits over subcarriers that no other device uses, then waits for a core of the site.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from enum import IntEnum
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from takeup.core.arrays import Bools, Floats, Ints
from takeup.core.report import Reported
from takeup.errors import BadInput, UnknownName

PER_DEVICE = ("bits", "cycles", "deadlines_s", "releases_s", "values_j")
LEAST_RATIO = 1e-200  # stands for a gain of zero: its logarithm is finite, and it is never worth any power
UNASSIGNED = -1  # the owner of a subcarrier that is not used


@dataclass(frozen=True, slots=True)
class Modulation:
    """A way to code bits: how many per second and hertz, and the signal-to-noise ratio it needs."""

    bits_per_hz_s: float
    least_ratio: float

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_number(field.name, getattr(self, field.name))
        most = float(np.log2(1 + self.least_ratio))
        if self.bits_per_hz_s > most:  # our bounds assume rates below Shannon's
            raise BadInput(
                f"a modulation of {self.bits_per_hz_s:g} bit/s per hertz at a ratio of {self.least_ratio:g} beats "
                f"Shannon's limit of {most:g}; give a higher ratio"
            )


@dataclass(frozen=True, slots=True)
class Radio:
    """Parameters of all uploads: subcarrier bandwidth, noise density, maximum power and circuit power of a device.

    Rates follow Shannon's formula, unless `modulations` are given: then an upload uses one of them on all its
    subcarriers, with the power on each that reaches the ratio it needs.
    """

    bandwidth_hz: float
    noise_w_per_hz: float
    max_power_w: float
    circuit_power_w: float = 0.0
    modulations: tuple[Modulation, ...] = ()

    def __post_init__(self) -> None:
        for name in ("bandwidth_hz", "noise_w_per_hz", "max_power_w"):
            _check_number(name, getattr(self, name))
        _check_number("circuit_power_w", self.circuit_power_w, zero_is_fine=True)


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """The tasks of all devices with deadlines and channels, and the site. Arrays are copied and read-only.

    `gains[device, subcarrier]` is the power that arrives over the power that was sent; 0: no coverage. Local energy
    per cycle is `chip_constant` times the square of the clock. `miss_penalty_j` is charged for a task that runs on
    its device although `local_hz` is too slow for its deadline. A task with an infinite deadline is `best_effort`: its
    device can run it so slowly that it costs nothing, so it never offloads. A task is known, and its upload may begin,
    at `releases_s` (0 if not given). `values_j` says what it is worth, beyond the energy, that the site does a task (0
    if not given). With `contiguous` the subcarriers of a device must be neighbours; with `group_sizes` it has one
    of these numbers of them.
    """

    gains: Floats
    bits: Floats
    cycles: Floats
    deadlines_s: Floats
    radio: Radio
    edge_hz: float
    local_hz: float
    chip_constant: float
    miss_penalty_j: float = 0.0
    num_cores: int = 1
    releases_s: Floats = 0.0  # type: ignore[assignment]  # one number stands for as many as there are devices
    values_j: Floats = 0.0  # type: ignore[assignment]
    contiguous: bool = False
    group_sizes: tuple[int, ...] = ()
    best_effort: Bools = False  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name in ("gains", *PER_DEVICE):
            object.__setattr__(self, name, _frozen(name, getattr(self, name)))
        self._spread("releases_s")
        self._spread("values_j")
        self._check_shapes()
        self._set_apart_best_effort()
        for name in ("bits", "cycles", "deadlines_s"):
            _check_all(name, getattr(self, name))
        for name in ("gains", "releases_s", "values_j"):
            _check_all(name, getattr(self, name), zero_is_fine=True)
        self._check_rest()

    def _spread(self, name: str) -> None:
        """Broadcast a scalar to one value per device."""
        values = getattr(self, name)
        if values.ndim == 0 and self.gains.ndim > 0:
            object.__setattr__(self, name, _frozen(name, np.full(len(self.gains), values)))

    def _set_apart_best_effort(self) -> None:
        """Mark infinite deadlines, and put the last finite one, or later, in their place."""
        endless = np.isposinf(self.deadlines_s)
        last_s = np.max(self.deadlines_s, where=np.isfinite(self.deadlines_s), initial=0.0)
        stand_in_s = np.maximum(last_s, self.releases_s + 1.0)
        marked = np.asarray(self.best_effort, np.bool_)
        if marked.any() and marked.shape != endless.shape:
            raise BadInput(
                f"best_effort has shape {marked.shape}, gains are for {self.num_devices} devices; give one for each"
            )
        best_effort = endless | marked if marked.any() else endless
        best_effort.setflags(write=False)
        object.__setattr__(self, "best_effort", best_effort)
        object.__setattr__(self, "deadlines_s", _frozen("deadlines_s", np.where(endless, stand_in_s, self.deadlines_s)))

    def _check_rest(self) -> None:
        late = self.releases_s >= self.deadlines_s
        if late.any():
            device = int(np.argmax(late))
            raise BadInput(
                f"releases_s[{device}] is {self.releases_s[device]:g}, not before its deadline "
                f"{self.deadlines_s[device]:g}; give an earlier release"
            )
        if self.num_cores < 1:
            raise BadInput(f"num_cores is {self.num_cores}; give at least one")
        if any(size < 1 for size in self.group_sizes):
            raise BadInput(f"group_sizes are {self.group_sizes}; every size must be at least one subcarrier")
        for name in ("edge_hz", "local_hz", "chip_constant"):
            _check_number(name, getattr(self, name))
        _check_number("miss_penalty_j", self.miss_penalty_j, zero_is_fine=True)

    def _check_shapes(self) -> None:
        if self.gains.ndim != 2:
            raise BadInput(
                f"gains have {self.gains.ndim} dimensions; give one row per device, one column per subcarrier"
            )
        if self.gains.shape[1] == 0:
            raise BadInput("gains have no columns, so there is no subcarrier; give at least one")
        for name in PER_DEVICE:
            shape = getattr(self, name).shape
            if shape != (self.num_devices,):
                raise BadInput(f"{name} has shape {shape}, gains are for {self.num_devices} devices; give one for each")

    @classmethod
    def from_gains(cls, channel: npt.NDArray[Any], subcarriers_per_block: int = 1, **fields: Any) -> Self:
        """An instance for a tensor from a channel simulator; `fields` are the other ones.

        The first axis is the device, the last one the subcarrier. Complex entries are coefficients, real ones power
        gains. Axes between are receive antennas, whose powers add. A block has the mean gain of its subcarriers.
        """
        powers = np.abs(channel) ** 2 if np.iscomplexobj(channel) else np.asarray(channel, np.float64)
        if powers.ndim < 2 or powers.shape[-1] % subcarriers_per_block:
            raise BadInput(
                f"a channel of shape {powers.shape} has no blocks of {subcarriers_per_block} subcarriers; give devices "
                "first, subcarriers last, and a number that divides them"
            )
        combined = powers.sum(axis=tuple(range(1, powers.ndim - 1)))
        blocks = combined.reshape(len(combined), -1, subcarriers_per_block).mean(axis=2)
        return cls(gains=blocks, **fields)

    def only(self, devices: Ints) -> Self:
        """The same site with some of the devices."""
        names = ("gains", *PER_DEVICE, "best_effort")
        return replace(self, **{name: getattr(self, name)[devices] for name in names})

    @property
    def num_devices(self) -> int:
        """How many devices have a task."""
        return len(self.gains)

    @property
    def num_subcarriers(self) -> int:
        """How many subcarriers there are to share."""
        return int(self.gains.shape[1])

    @property
    def gain_to_noise(self) -> Floats:
        """Signal-to-noise ratio per watt sent, for every device and subcarrier; tiny where there is no coverage."""
        ratios = self.gains / (self.radio.noise_w_per_hz * self.radio.bandwidth_hz)
        return np.maximum(ratios, LEAST_RATIO)

    @property
    def run_s(self) -> Floats:
        """How long a core of the site needs for every task."""
        return self.cycles / self.edge_hz

    @property
    def too_slow(self) -> Bools:
        """Devices whose own clock cannot meet the deadline."""
        return (self.cycles > self.local_hz * (self.deadlines_s - self.releases_s)) & ~self.best_effort

    @property
    def local_j(self) -> Floats:
        """What it costs every device to run its task itself; too slow ones run at full speed, and pay the penalty."""
        clock_hz = np.minimum(self.cycles / (self.deadlines_s - self.releases_s), self.local_hz)
        energies: Floats = self.chip_constant * self.cycles * clock_hz**2
        return np.where(self.best_effort, 0.0, np.where(self.too_slow, energies + self.miss_penalty_j, energies))

    @property
    def worth_j(self) -> Floats:
        """The most that every device may spend on an upload; above it, running the task locally is better."""
        return np.where(self.best_effort, 0.0, self.local_j + self.values_j)


@dataclass(frozen=True, slots=True, eq=False)
class Allocation:
    """Which devices offload, over which subcarriers, and when. Local devices have nan in all fields but energies.

    `owners` and `powers_w` are by subcarrier; `upload_s` is when the upload ends (it begins at the release), `start_s`
    when a core begins; `energies_j` is what every device spends, on its upload or on its own run.
    """

    offloads: Bools
    owners: Ints
    powers_w: Floats
    upload_s: Floats
    start_s: Floats
    energies_j: Floats

    @classmethod
    def local(cls, instance: Instance) -> Self:
        """Every device runs its own task."""
        count, num_subcarriers = instance.num_devices, instance.num_subcarriers
        never_s = np.full(count, np.nan)
        owners = np.full(num_subcarriers, UNASSIGNED)
        return cls(np.zeros(count, np.bool_), owners, np.zeros(num_subcarriers), never_s, never_s, instance.local_j)

    def spread(self, instance: Instance, devices: Ints) -> Self:
        """The same plan, made for these devices of the instance; the others run locally."""
        whole = type(self).local(instance)
        by_device = {}
        for name in ("offloads", "upload_s", "start_s", "energies_j"):
            by_device[name] = getattr(whole, name).copy()
            by_device[name][devices] = getattr(self, name)
        owners = np.where(self.owners >= 0, devices[self.owners], UNASSIGNED)
        return replace(self, owners=owners, **by_device)

    @property
    def num_accepted(self) -> int:
        """How many devices offload."""
        return int(self.offloads.sum())

    @property
    def energy_j(self) -> float:
        """What all devices spend together."""
        return float(self.energies_j.sum())

    def group(self, device: int) -> Ints:
        """The subcarriers of a device."""
        return np.flatnonzero(self.owners == device)


class Reason(IntEnum):
    """Why a device offloads or does not."""

    OFFLOADS = 0
    NOT_CONSIDERED = 1
    NO_SAVING = 2
    CROWDED_OUT = 3
    MISSED_CPU = 4
    MISSED_RADIO = 5

    @property
    def text(self) -> str:
        """The reason in words."""
        return _TEXTS[self]


_TEXTS = {
    Reason.OFFLOADS: "its upload costs less than its own run, and the CPU finishes in time",
    Reason.NOT_CONSIDERED: "this policy offloads no device",
    Reason.NO_SAVING: "even alone at the site it would not save energy before its deadline",
    Reason.CROWDED_OUT: "other devices save more with the subcarriers and the CPU time it needs",
    Reason.MISSED_CPU: "it was given subcarriers, but the CPU could not finish it in time",
    Reason.MISSED_RADIO: "it was given CPU time, but no subcarriers to upload before it begins",
}


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided for one device, and why."""

    device: int
    offload: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Prices:
    """What one more subcarrier and one more core would be worth at most, judged by the bound."""

    subcarrier_j: float
    core_j: float


@dataclass(frozen=True, slots=True, eq=False)
class Answer(Reported):
    """An allocation, the energy it saves over running everything locally, and what no allocation can exceed.

    `extra_j` is the sum of the values of the offloading devices. The bound is on the worth: saving plus values.
    """

    policy: str
    allocation: Allocation
    saving_j: float
    reasons: npt.NDArray[np.int8]
    bound_j: float | None = None
    extra_j: float = 0.0
    prices: Prices | None = None

    @property
    def worth_j(self) -> float:
        """The objective that policies maximise."""
        return self.saving_j + self.extra_j

    @property
    def gap_share(self) -> float | None:
        """The largest share of the possible worth that may be missing; None where no bound is known."""
        if self.bound_j is None:
            return None
        return max(0.0, 1.0 - self.worth_j / self.bound_j) if self.bound_j > 0 else 0.0

    def decisions(self) -> Iterator[Decision]:
        """One decision for each device, in order."""
        for device, code in enumerate(self.reasons.tolist()):
            yield Decision(device, code == Reason.OFFLOADS, Reason(code).text)


# Checks ---------------------------------------------------------------------------------------------------------------


def _frozen(name: str, values: object) -> Floats:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInput(f"{name} cannot be read as numbers ({error}); give an array of numbers") from None
    array.setflags(write=False)
    return array


def _check_all(name: str, values: Floats, *, zero_is_fine: bool = False) -> None:
    wrong = ~(np.isfinite(values) & ((values >= 0) if zero_is_fine else (values > 0)))
    if wrong.any():
        place = tuple(int(index) for index in np.argwhere(wrong)[0])
        where = f"{name}[{', '.join(map(str, place))}]"
        raise BadInput(
            f"{where} is {values[place]:g}; every entry of {name} must be a finite number {_bar(zero_is_fine)}"
        )


def _check_number(name: str, value: float, *, zero_is_fine: bool = False) -> None:
    if not (np.isfinite(value) and (value > 0 or (zero_is_fine and value == 0))):
        raise BadInput(f"{name} is {value:g}; make it a finite number {_bar(zero_is_fine)}")


def _bar(zero_is_fine: bool) -> str:
    return "of zero or more" if zero_is_fine else "above zero"


# What to make large: the energy saved, the number of devices served and then the energy, or values given by the user
#
# Policies know one aim, saving plus values. So an objective is a choice of values: none for energy; for the count, as
# much for each device as no energy can outweigh.

Objective = Literal["energy", "count", "value"]
OBJECTIVES: tuple[Objective, ...] = ("energy", "count", "value")


def with_objective(instance: Instance, objective: str) -> Instance:
    """The same devices, with the values that make policies pursue this objective."""
    if objective not in OBJECTIVES:
        raise UnknownName("edge objective", objective, OBJECTIVES)
    if objective == "value":
        return instance
    each_j = _all_energy_j(instance) if objective == "count" else 0.0
    return replace(instance, values_j=np.full(instance.num_devices, each_j))


def _all_energy_j(instance: Instance) -> float:
    """More than all devices together can spend, locally and on uploads."""
    most_w = instance.radio.circuit_power_w + instance.radio.max_power_w
    uploads_j = most_w * (instance.deadlines_s - instance.releases_s)
    return float((instance.local_j + uploads_j).sum())
