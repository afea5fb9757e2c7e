"""From instances to the arrays of the kernels, and from an outcome to an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from takeup.edge.model import UNASSIGNED, Allocation, Answer, Instance, Reason
from takeup.edge.policies.fast.shapes import FinishedPlans, InitialPlans, PlanRoles, SearchEffort, TaskArrays
from takeup.edge.policies.fast.solve import solve_instances

GroupsByDevice = Mapping[int, Sequence[int]]


def greedy_answer(instance: Instance, metric: int, policy: str) -> Answer:
    """The answer that grows greedily by one of the metrics, which are numbered."""
    outcome = finished_plans([instance], SearchEffort(metric, 0, 0, 0), _starts(instance, []))
    return _answer(instance, outcome, policy)


def searched_answer(instance: Instance, starts: Sequence[GroupsByDevice], effort: SearchEffort, policy: str) -> Answer:
    """The best answer of a search from the greedy plans and these starts; a group without subcarriers is open."""
    return _answer(instance, finished_plans([instance], effort, _starts(instance, starts)), policy)


def finished_plans(
    instances: Sequence[Instance], effort: SearchEffort, starts: InitialPlans | None = None
) -> FinishedPlans:
    """The finished plans of all instances, one after the other."""
    tasks = _tasks(instances)
    num_devices, num_subcarriers = int(tasks.num_devices.sum()), int(tasks.num_subcarriers.sum())
    outcome = FinishedPlans(
        np.full(num_subcarriers, UNASSIGNED, np.int64),
        np.zeros(num_subcarriers),
        np.full(num_devices, np.nan),
        np.full(num_devices, np.nan),
        np.full(num_devices, np.nan),
        np.zeros(num_devices, np.bool_),
        np.zeros(len(instances), np.int64),
    )
    solve_instances(
        tasks,
        starts or InitialPlans(np.zeros((0, 0), np.bool_), np.zeros((0, 0), np.int64)),
        effort,
        PlanRoles(),
        outcome,
    )
    return outcome


def _tasks(instances: Sequence[Instance]) -> TaskArrays:
    """All instances in the same arrays. Fresh ones: kernels are compiled for arrays that can be written to."""
    num_devices = np.array([each.num_devices for each in instances], np.int64)
    num_subcarriers = np.array([each.num_subcarriers for each in instances], np.int64)
    noise_w = np.array([each.radio.noise_w_per_hz * each.radio.bandwidth_hz for each in instances])
    bandwidth_hz = np.array([each.radio.bandwidth_hz for each in instances])
    edge_hz = np.array([each.edge_hz for each in instances])
    return TaskArrays(
        num_devices,
        num_subcarriers,
        _joined([each.gains.reshape(-1) for each in instances]) / np.repeat(noise_w, num_devices * num_subcarriers),
        _joined([each.bits for each in instances]) / np.repeat(bandwidth_hz, num_devices),
        _joined([each.deadlines_s for each in instances]),
        _joined([each.cycles for each in instances]) / np.repeat(edge_hz, num_devices),
        _joined([each.releases_s for each in instances]),
        _joined([each.worth_j for each in instances]),
        np.array([each.radio.max_power_w for each in instances], np.float64),
        np.array([each.radio.circuit_power_w for each in instances], np.float64),
        np.array([each.num_cores for each in instances], np.int64),
    )


def _joined(arrays: list[npt.NDArray[np.float64]]) -> npt.NDArray[np.float64]:
    return np.concatenate(arrays) if arrays else np.zeros(0)


def _starts(instance: Instance, starts: Sequence[GroupsByDevice]) -> InitialPlans:
    wanted = np.zeros((len(starts), instance.num_devices), np.bool_)
    owner = np.full((len(starts), instance.num_subcarriers), UNASSIGNED, np.int64)
    for row, groups in enumerate(starts):
        for device, group in groups.items():
            wanted[row, device] = True
            owner[row, list(group)] = device
    return InitialPlans(wanted, owner)


def _answer(instance: Instance, outcome: FinishedPlans, policy: str) -> Answer:
    offloads = ~np.isnan(outcome.start_s)
    local_j = instance.local_j
    energies_j = np.where(offloads, outcome.spent_j, local_j)
    reasons = np.where(outcome.can_save, np.int8(Reason.CROWDED_OUT), np.int8(Reason.NO_SAVING))
    return Answer(
        policy,
        Allocation(offloads, outcome.owners, outcome.powers_w, outcome.upload_s, outcome.start_s, energies_j),
        float((local_j - energies_j)[offloads].sum()),
        np.where(offloads, np.int8(Reason.OFFLOADS), reasons),
        extra_j=float(instance.values_j[offloads].sum()),
    )
