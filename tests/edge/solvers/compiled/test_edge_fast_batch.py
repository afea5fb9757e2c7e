"""Many instances at once: the numbers of the policies one by one."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from edge.cells import with_extras
from takeup.edge.planning import joint_batch
from takeup.edge.policies import find_policy
from takeup.edge.traces.generators import paper_setting, radio_tight_setting


@pytest.mark.parametrize("policy", ["joint", "joint_plus"])
def test_a_batch_has_the_numbers_of_every_instance_alone(policy: Literal["joint", "joint_plus"]) -> None:
    random = np.random.default_rng(1)
    cells = [
        paper_setting(random, 6),
        radio_tight_setting(random, 8, 5),
        replace(paper_setting(random, 4), group_sizes=(1,)),  # not known to the kernels
        paper_setting(random, 0),
        with_extras(radio_tight_setting(random, 7, 3, 2e9), random, 2),
    ]
    answers = [find_policy(policy).allocate(cell) for cell in cells]
    batch = joint_batch(cells, policy)

    assert batch.saving_j.tolist() == pytest.approx([each.saving_j for each in answers])
    assert batch.worth_j.tolist() == pytest.approx([each.worth_j for each in answers])
    assert batch.energy_j.tolist() == pytest.approx([each.allocation.energy_j for each in answers])
    assert batch.num_accepted.tolist() == [each.allocation.num_accepted for each in answers]


def test_a_batch_of_nothing_is_empty() -> None:
    assert joint_batch([]).saving_j.tolist() == []
    assert joint_batch([]).num_accepted.dtype == np.int64
