"""One link of a pipeline becomes slow: what three schedules then take, and what no schedule can beat.

Four stages, twelve micro-batches, 20 ms for every operation; the link between the last two stages is late by 60 ms, and
then instead carries only one message every 60 ms.
"""

from __future__ import annotations

from takeup.training import Link, Profile, find_policy

for words, link in (
    ("healthy", Link()),
    ("60 ms latency", Link(latency_s=0.060)),
    ("60 ms service", Link(service_s=0.060)),
):
    pipeline = Profile.uniform(4, 12, op_s=0.020, links={2: link})
    plans = {name: find_policy(name).plan(pipeline) for name in ("one_f_one_b", "zb_h1", "adaptra")}
    times = ", ".join(f"{name} {1000 * plan.iteration_s:.0f} ms" for name, plan in plans.items())
    best = plans["adaptra"]
    print(f"{words + ':':15}{times}; no order takes less than {1000 * best.bound_s:.0f} ms")

print(f"then adaptra warms up with {best.schedule.warmups()} forwards, and holds at most {max(best.peak_live)} at once")
