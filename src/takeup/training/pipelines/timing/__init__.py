"""Timing of pipelines: when every operation of a schedule starts and ends, and lower bounds for any schedule.

    evaluation.py    profile as arrays, timeline of a schedule, generated and searched schedules, bounds, plans
    replay.py        kernels: messages on wires; run a given order
    search.py        kernels: generate an order, and search around it

Times are integer nanoseconds: comparisons give the same result on every machine, so all ranks derive the same schedule.
"""

from takeup.core.compiled import drop_stale_code

drop_stale_code(__file__)
