"""Independent validation of an allocation: checks every constraint again, and names the first that is violated.

Shares no code with the policies and the energy oracle, on purpose: rates come from Shannon's formula on the powers that
the allocation states, energies from these powers and times.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from takeup.edge.model import UNASSIGNED, Allocation, Answer, Instance, Reason

TOLERANCE = 1e-9  # relative; what rounding may cost


@dataclass(frozen=True, slots=True)
class Violation:
    """A constraint that does not hold: its name, which device or resource violates it, and by how much."""

    constraint: str
    detail: str


def first_violation(instance: Instance, allocation: Allocation, *, ignores_cpu: bool = False) -> Violation | None:
    """The first constraint that the allocation breaks, or None. `ignores_cpu` lets tasks overlap on the cores."""
    found = next(_shape(instance, allocation), None)
    if found is not None:
        return found
    checks = [_owners, _groups, _powers, _rates, _uploads, _deadlines, _energies]
    for check in checks if ignores_cpu else [*checks[:-1], _overlaps, checks[-1]]:
        found = next(check(instance, allocation), None)
        if found is not None:
            return found
    return None


def violation_of_answer(instance: Instance, answer: Answer, *, ignores_cpu: bool = False) -> Violation | None:
    """The same for an answer, whose saving, bound and reasons must agree with its allocation."""
    found = first_violation(instance, answer.allocation, ignores_cpu=ignores_cpu)
    return found or next(_claims(instance, answer), None)


def _shape(instance: Instance, allocation: Allocation) -> Iterator[Violation]:
    devices, subcarriers = (instance.num_devices,), (instance.num_subcarriers,)
    expected = {"owners": subcarriers, "powers_w": subcarriers}
    for name in ("offloads", "upload_s", "start_s", "energies_j"):
        expected[name] = devices
    for name, shape in expected.items():
        if getattr(allocation, name).shape != shape:
            yield Violation("shape", f"{name} has shape {getattr(allocation, name).shape}, not {shape}")


def _owners(instance: Instance, allocation: Allocation) -> Iterator[Violation]:
    for subcarrier, owner in enumerate(allocation.owners.tolist()):
        if owner != UNASSIGNED and not 0 <= owner < instance.num_devices:
            yield Violation("owner", f"subcarrier {subcarrier} belongs to device {owner}, which does not exist")
        elif allocation.powers_w[subcarrier] != 0 and (owner == UNASSIGNED or not allocation.offloads[owner]):
            yield Violation("owner", f"subcarrier {subcarrier} carries power, but its owner {owner} does not offload")
    for device in _offloaders(allocation):
        if device not in allocation.owners:
            yield Violation("owner", f"device {device} offloads without a subcarrier")


def _groups(instance: Instance, allocation: Allocation) -> Iterator[Violation]:
    for device in _offloaders(allocation):
        group = np.flatnonzero(allocation.owners == device).tolist()
        if instance.contiguous and group[-1] - group[0] + 1 != len(group):
            yield Violation("group", f"device {device} has subcarriers {group}, which are not neighbours")
        if instance.group_sizes and len(group) not in instance.group_sizes:
            yield Violation("group", f"device {device} has {len(group)} subcarriers, not one of {instance.group_sizes}")


def _powers(instance: Instance, allocation: Allocation) -> Iterator[Violation]:
    for subcarrier, power_w in enumerate(allocation.powers_w.tolist()):
        if not (power_w >= 0 and math.isfinite(power_w)):
            yield Violation("power", f"subcarrier {subcarrier} carries {power_w:g} W")
    most_w = instance.radio.max_power_w
    for device in _offloaders(allocation):
        total_w = sum(allocation.powers_w[allocation.owners == device].tolist())
        if total_w > most_w * (1 + TOLERANCE):
            yield Violation("power", f"device {device} sends with {total_w:g} W, more than {most_w:g} W")


def _rates(instance: Instance, allocation: Allocation) -> Iterator[Violation]:
    noise_w = instance.radio.noise_w_per_hz * instance.radio.bandwidth_hz
    for device in _offloaders(allocation):
        ratios = []
        for subcarrier in np.flatnonzero(allocation.owners == device).tolist():
            ratios.append(float(allocation.powers_w[subcarrier] * instance.gains[device, subcarrier] / noise_w))
        rate_bps = instance.radio.bandwidth_hz * _bits_per_hz_s(instance, ratios)
        sent = rate_bps * float(allocation.upload_s[device] - instance.releases_s[device])
        if not sent >= instance.bits[device] * (1 - TOLERANCE):
            yield Violation("rate", f"device {device} sends {sent:g} of {instance.bits[device]:g} bits")


def _bits_per_hz_s(instance: Instance, ratios: list[float]) -> float:
    """What goes over subcarriers with these signal-to-noise ratios, per hertz of each, in a second."""
    if not instance.radio.modulations:
        return sum(math.log1p(ratio) for ratio in ratios) / math.log(2)
    used = [ratio for ratio in ratios if ratio > 0]
    worst = min(used, default=0.0) * (1 + TOLERANCE)
    rates = [each.bits_per_hz_s for each in instance.radio.modulations if each.least_ratio <= worst]
    return len(used) * max(rates, default=0.0)


def _uploads(instance: Instance, allocation: Allocation) -> Iterator[Violation]:
    for device in _offloaders(allocation):
        upload_s, start_s = float(allocation.upload_s[device]), float(allocation.start_s[device])
        release_s = float(instance.releases_s[device])
        if not release_s < upload_s <= start_s * (1 + TOLERANCE):
            times = f"uploads from {release_s:g} s until {upload_s:g} s, its core begins at {start_s:g} s"
            yield Violation("upload", f"device {device} {times}")


def _deadlines(instance: Instance, allocation: Allocation) -> Iterator[Violation]:
    for device in _offloaders(allocation):
        end_s = float(allocation.start_s[device] + instance.cycles[device] / instance.edge_hz)
        due_s = float(instance.deadlines_s[device])
        if not end_s <= due_s * (1 + TOLERANCE):
            yield Violation("deadline", f"device {device} is done at {end_s:g} s, due at {due_s:g} s")


def _overlaps(instance: Instance, allocation: Allocation) -> Iterator[Violation]:
    """A task takes the core that has been free for longest; if that one is busy, all are."""
    free_s = [(0.0, UNASSIGNED)] * instance.num_cores
    for device in sorted(_offloaders(allocation), key=lambda device: float(allocation.start_s[device])):
        end_s, before = free_s.pop(0)
        if end_s > allocation.start_s[device] * (1 + TOLERANCE):
            yield Violation("overlap", f"device {device} begins before device {before} ends at {end_s:g} s")
        free_s.append((float(allocation.start_s[device] + instance.cycles[device] / instance.edge_hz), device))
        free_s.sort()


def _energies(instance: Instance, allocation: Allocation) -> Iterator[Violation]:
    expected_j = instance.local_j.copy()
    for device in _offloaders(allocation):
        sent_w = sum(allocation.powers_w[allocation.owners == device].tolist())
        expected_j[device] = (instance.radio.circuit_power_w + sent_w) * (
            allocation.upload_s[device] - instance.releases_s[device]
        )
    wrong = ~np.isclose(allocation.energies_j, expected_j, rtol=1e-6, atol=0.0)
    if wrong.any():
        device = int(np.argmax(wrong))
        stated_j, real_j = allocation.energies_j[device], expected_j[device]
        yield Violation("energy", f"device {device} states {stated_j:g} J, its times and powers make {real_j:g} J")


def _claims(instance: Instance, answer: Answer) -> Iterator[Violation]:
    local_j = float(instance.local_j.sum())
    saving_j = local_j - answer.allocation.energy_j
    if not abs(answer.saving_j - saving_j) <= 1e-6 * local_j:
        yield Violation("saving", f"the answer claims {answer.saving_j:g} J, its allocation saves {saving_j:g} J")
    extra_j = float(instance.values_j[answer.allocation.offloads].sum())
    if not abs(answer.extra_j - extra_j) <= 1e-6 * extra_j:
        yield Violation("extra", f"the answer claims values of {answer.extra_j:g} J, its devices have {extra_j:g} J")
    if answer.bound_j is not None and answer.worth_j > answer.bound_j + 1e-6 * (local_j + extra_j):
        yield Violation("bound", f"the answer is worth {answer.worth_j:g} J, more than its bound {answer.bound_j:g} J")
    if not np.array_equal(answer.reasons == Reason.OFFLOADS, answer.allocation.offloads):
        yield Violation("reason", "the reasons and the allocation disagree about which devices offload")


def _offloaders(allocation: Allocation) -> list[int]:
    return [int(device) for device in np.flatnonzero(allocation.offloads)]
