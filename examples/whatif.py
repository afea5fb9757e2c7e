"""Ask what other policies would have done for a job graph of your own, built in a few lines."""

from __future__ import annotations

from takeup.caching import EngineModel, WorkloadBuilder, find_policy, replay

MB = 1_000_000
builder = WorkloadBuilder("three passes")
for part in range(8):
    builder.block(("table", part), 10 * MB)
    builder.task(outputs=[("table", part)], compute_s=2.0)
for query in range(3):
    for part in range(8):
        builder.block(("answer", query, part), MB)
        builder.task(inputs=[("table", part)], outputs=[("answer", query, part)], job=1 + query, compute_s=0.1)
workload = builder.build()

for capacity_bytes in (40 * MB, 60 * MB, 80 * MB):
    model = EngineModel(capacity_bytes, miss="recompute")
    for name in ("lru", "lrc", "dag"):
        result = replay(find_policy(name), workload, model)
        print(f"{capacity_bytes // MB} MB  {name:4} hits {result.hit_share:.2f}  time {result.makespan_s:5.1f} s")
