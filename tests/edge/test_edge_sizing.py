"""Sizing: the least resource that serves enough devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from takeup.edge.model import Instance
from takeup.edge.planning import RequiredAmount, least_enough, served_share
from takeup.edge.traces.generators import paper_setting
from takeup.papers.edge.baselines import COMPARED


def cells(num_subcarriers: int = 4, num_cores: int = 1) -> list[Instance]:
    return [
        replace(paper_setting(np.random.default_rng(seed), 6, num_subcarriers), num_cores=num_cores)
        for seed in range(5)
    ]


def test_nobody_is_served_by_a_policy_that_offloads_nobody() -> None:
    assert served_share(cells(), COMPARED["local"]) == 0
    assert served_share([], COMPARED["joint"]) == 0


def test_as_many_subcarriers_as_devices_are_needed_when_the_cpu_is_free() -> None:
    needed = least_enough(lambda count: cells(count, num_cores=6), COMPARED["min_group"], 1.0, most=16)

    assert needed == RequiredAmount(6, 1.0)


@pytest.mark.parametrize("target", [0.3, 0.6, 0.9])
def test_one_less_is_not_enough(target: float) -> None:
    def make(count: int) -> Sequence[Instance]:
        return cells(6, num_cores=count)

    joint = COMPARED["joint"]
    needed = least_enough(make, joint, target, most=8)

    assert needed.amount is not None
    assert served_share(make(needed.amount), joint) == needed.served_share >= target
    assert needed.amount == 1 or served_share(make(needed.amount - 1), joint) < target


def test_a_target_out_of_reach_is_said_to_be() -> None:
    needed = least_enough(lambda count: cells(2, num_cores=count), COMPARED["joint"], 0.9, most=8)

    assert needed.amount is None
    assert 0 < needed.served_share < 0.9
