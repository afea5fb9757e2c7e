"""Upper bound on the allocation of any scheduler on a day, from the state in which the day began.

How it works. It is a maximum flow from spot jobs to hours: each job has a remaining amount of work and a maximum number
of GPUs, and each hour has the capacity not used by high-priority jobs. So the bound is for a clairvoyant scheduler that
preempts, divides and moves spot jobs at no cost. It serves high-priority jobs when GFS does, and repeats no more work.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from takeup.cluster.fleet.outcome import Outcome
from takeup.cluster.model import Grade, Kind, Workload
from takeup.core.arrays import Floats

SLOT_S, NUM_SLOTS = 3600.0, 24  # seconds in an hour, and hours of a day
MAX_FLOW_UNITS = 2**30


def allocation_bound_gpu_s(
    workload: Workload, ours: Outcome, hour: int, left_gpu_s: Floats, later_gpu_s: Floats
) -> float:
    """Upper bound on the GPU-seconds allocated in the day that begins with this hour.

    `left_gpu_s` and `later_gpu_s` are the remaining work of all jobs when the day begins and when it ends.
    """
    hours = slice(hour, hour + NUM_SLOTS)
    used = ours.allocated_gpu_s[:, hours].sum(axis=0)
    spot = (workload.job_kind == Kind.SPOT) & (workload.job_submit_s < (hour + NUM_SLOTS) * SLOT_S)
    gpus = workload.job_gpus[spot] * workload.job_workers[spot]
    begin_s = np.arange(hour, hour + NUM_SLOTS) * SLOT_S
    here_s = np.clip(begin_s + SLOT_S - workload.job_submit_s[spot, None], 0.0, SLOT_S)
    room_gpu_s = ours.capacity_gpus.sum() * SLOT_S - used[:, Grade.HIGH]
    twice_gpu_s = used[:, Grade.GUARANTEED :].sum() - (left_gpu_s - later_gpu_s)[spot].sum()
    fresh_gpu_s = _max_flow(left_gpu_s[spot], gpus[:, None] * here_s, room_gpu_s)
    return float(used[:, Grade.HIGH].sum() + fresh_gpu_s + max(0.0, twice_gpu_s))


def _max_flow(work: Floats, rates: Floats, room: Floats) -> float:
    """The largest flow from jobs with `work` to hours with `room`, at most `rates[job, hour]` from one to the other.

    The solver uses 32-bit integers: work is capped at the total capacity, and large pools are counted in larger units.
    """
    unit = max(1.0, float(room.sum()) / MAX_FLOW_UNITS)
    work = np.minimum(work, room.sum())
    some = work > 0
    num_jobs, num_hours = int(some.sum()), len(room)
    graph = np.zeros((num_jobs + num_hours + 2, num_jobs + num_hours + 2), np.int32)
    graph[0, 1 : num_jobs + 1] = np.ceil(work[some] / unit)
    graph[1 : num_jobs + 1, num_jobs + 1 : -1] = np.ceil(np.minimum(rates[some], room) / unit)
    graph[num_jobs + 1 : -1, -1] = np.ceil(room / unit)
    return unit * float(maximum_flow(csr_array(graph), 0, len(graph) - 1).flow_value)
