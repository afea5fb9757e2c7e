"""Many instances under many policies: energies, accepted requests and savings, and tolerances for comparing means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from takeup.core.arrays import Floats
from takeup.core.report import Check, Source
from takeup.edge.model import Instance
from takeup.edge.policies import find_policy
from takeup.edge.validate import violation_of_answer


@dataclass(frozen=True, slots=True, eq=False)
class PolicySample:
    """One number per instance for a policy."""

    energy_j: Floats
    accepted: Floats
    saving_j: Floats


def run_policies(instances: Sequence[Instance], policies: Sequence[str]) -> dict[str, PolicySample]:
    """Run every policy on every instance; each answer is checked by the validator."""
    return {name: _run_policy(instances, name) for name in policies}


def _run_policy(instances: Sequence[Instance], name: str) -> PolicySample:
    rows = []
    policy = find_policy(name)
    for instance in instances:
        answer = policy.allocate(instance)
        violation = violation_of_answer(instance, answer, ignores_cpu=policy.ignores_cpu)
        assert violation is None, violation
        rows.append((answer.allocation.energy_j, answer.allocation.num_accepted, answer.saving_j))
    return PolicySample(*np.array(rows, float).T)


def mean_check(name: str, ours: Floats, expected: float, *, errors: float, unit: str, source: Source) -> Check:
    """Compare means of two samples of the same size: ours, and one of which only the mean is known."""
    variance = max(float(ours.var(ddof=1)), 1 / len(ours))  # at least the effect of one differing instance
    tolerance = errors * float(np.sqrt(2 * variance / len(ours))) + 0.005  # plus half of the last printed digit
    why = "within the sampling error of both"
    return Check.near(name, float(ours.mean()), expected, tolerance, unit=unit, source=source, why=why)
