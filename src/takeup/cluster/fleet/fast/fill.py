"""Numba kernels: many jobs of a state at once, since every call from Python costs as much as a decision."""

from __future__ import annotations

import numpy as np

from takeup.cluster.fleet.fast.books import enqueue, resume
from takeup.cluster.fleet.layout import Fleet
from takeup.cluster.fleet.rules import SchedulerRules
from takeup.core.arrays import Floats, Ints
from takeup.core.compiled import kernel


@kernel
def resume_all(fleet: Fleet, jobs: Ints, seats: Ints, grades: Ints, start_s: Floats, saved_s: Floats) -> None:
    """Seat jobs that run already; `seats` has a node for each worker, job after job."""
    first = 0
    for place in range(len(jobs)):
        num_workers = fleet.jobs[jobs[place]].workers
        nodes = seats[first : first + num_workers]
        first_save_s = saved_s[place] if saved_s[place] > start_s[place] else np.inf
        resume(fleet, jobs[place], nodes, grades[place], start_s[place], first_save_s)
        first += num_workers


@kernel
def enqueue_all(fleet: Fleet, jobs: Ints, since_s: Floats, rules: SchedulerRules) -> None:
    """Put jobs where they belong in their queues."""
    for place in range(len(jobs)):
        enqueue(fleet, jobs[place], since_s[place], rules)
