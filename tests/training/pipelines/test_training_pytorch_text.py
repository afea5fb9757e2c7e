"""Schedules as text are what PyTorch's pipeline runtime understands: it reads, checks and lowers every one of them."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from takeup.training.pipelines.planners import POLICIES
from takeup.training.pipelines.profile import Profile
from training.pipeline_profiles import congested, slow

lowering = pytest.importorskip("torch.distributed.pipelining.schedules")
COMMUNICATES = re.compile("SEND|RECV")


@pytest.mark.parametrize("profile", [slow(4, 8, {1: 25}), congested(3, 6, {0: 35})])
@pytest.mark.parametrize("name", POLICIES)
def test_pytorch_reads_checks_and_lowers_the_schedule(name: str, profile: Profile) -> None:
    schedule = POLICIES[name].plan(profile).schedule
    rows = schedule.to_csv().splitlines()
    actions = {rank: [lowering._Action.from_str(cell) for cell in row.split(",")] for rank, row in enumerate(rows)}

    lowering._validate_schedule(actions, len(rows), schedule.num_stages, schedule.num_microbatches)
    given = {rank: list(row) for rank, row in actions.items()}  # the lowering eats what it is given
    lowered = lowering._add_send_recv(given, schedule.placement.__getitem__, schedule.num_stages)

    computed = {
        rank: [str(each) for each in row if not COMMUNICATES.search(str(each))] for rank, row in lowered.items()
    }
    sends = sum("SEND" in str(each) for row in lowered.values() for each in row)
    crossings = sum(here != after for here, after in pairwise(schedule.placement))
    assert [computed[rank] for rank in range(len(rows))] == [row.split(",") for row in rows]
    assert sends == 2 * crossings * schedule.num_microbatches
