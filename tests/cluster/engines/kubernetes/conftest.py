"""What several of these tests need first."""

from __future__ import annotations

import pytest

from takeup.cluster.model import Eviction, Grade, Job, Kind, Node, Run, State, Waiting
from takeup.cluster.policies import find_policy


@pytest.fixture(scope="session")
def compiled() -> None:
    """The scheduler, compiled: the first time ever that takes longer than any test should wait for a decision."""
    nodes = (Node("n0", "a100", 8), Node("n1", "a100", 8))
    spot = Job("s", Kind.SPOT, "team", "a100", 8.0)
    high = [Job(f"h{number}", Kind.HIGH, "team", "a100", 8.0) for number in range(2)]
    runs = (Run(spot, ("n0",), 0.0, Grade.OPPORTUNISTIC, 0.0),)
    waiting = tuple(Waiting(job, 0.0) for job in high)
    past = (Eviction("s", 5000.0, ("n0",)),)
    state = State(9000.0, nodes, runs, waiting, evictions=past, nominations={"h0": ("n1",)})

    find_policy("gfs").decide(state)
