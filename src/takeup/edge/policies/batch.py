"""Batch evaluation: what the joint policies save in each of many instances, without the allocations.

For studies that need thousands of cells. Single-threaded; instances that the kernels do not support are solved
one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from takeup.core.arrays import Floats, Ints
from takeup.edge.model import Instance
from takeup.edge.policies.joint import METRICS, Joint, has_kernels
from takeup.edge.policies.joint_plus import JointPlus


@dataclass(frozen=True, slots=True, eq=False)
class BatchAnswer:
    """Results for every instance; the worth is the saving plus the values of the offloading devices."""

    saving_j: Floats
    worth_j: Floats
    energy_j: Floats
    num_accepted: Ints


def joint_batch(instances: Sequence[Instance], policy: Literal["joint", "joint_plus"] = "joint") -> BatchAnswer:
    """The results of `joint`, or of `joint_plus`, for every instance, in their order."""
    numbers = np.zeros((len(instances), 4))
    quick = [index for index, each in enumerate(instances) if has_kernels(each)]
    numbers[quick] = _batch_by_kernel([instances[index] for index in quick], policy)
    for index in sorted(set(range(len(instances))) - set(quick)):
        answer = (Joint() if policy == "joint" else JointPlus()).allocate(instances[index])
        numbers[index] = answer.saving_j, answer.worth_j, answer.allocation.energy_j, answer.allocation.num_accepted
    saving_j, worth_j, energy_j, num_accepted = numbers.T.copy()
    return BatchAnswer(saving_j, worth_j, energy_j, num_accepted.astype(np.int64))


def _batch_by_kernel(instances: Sequence[Instance], policy: str) -> Floats:
    """One row of numbers for each instance, all from one call of the kernel."""
    from takeup.edge.policies.fast.answers import finished_plans
    from takeup.edge.policies.fast.shapes import SearchEffort

    if not instances:
        return np.zeros((0, 4))
    effort = SearchEffort(METRICS.index("saving"), 0, 0, 0) if policy == "joint" else JointPlus().effort()
    spent_j = finished_plans(instances, effort).spent_j
    offloads = ~np.isnan(spent_j)
    local_j = np.concatenate([each.local_j for each in instances])
    values_j = np.concatenate([each.values_j for each in instances])
    savings_j = np.where(offloads, local_j - spent_j, 0.0)
    by_device = (savings_j, savings_j + values_j * offloads, np.where(offloads, spent_j, local_j), offloads)
    owner = np.repeat(np.arange(len(instances)), [each.num_devices for each in instances])
    return np.stack([np.bincount(owner, numbers, len(instances)) for numbers in by_device], axis=1)
