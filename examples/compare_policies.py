"""Compare LRU, LRC and LERC on the multi-tenant zip, as a library."""

from __future__ import annotations

from takeup.caching import EngineModel, find_policy, generate, replay

workload = generate("zip", seed=1)
model = EngineModel(capacity_bytes=workload.working_set_bytes // 2)
for name in ("lru", "lrc", "lerc", "lerc+admission", "dag", "belady"):
    result = replay(find_policy(name), workload, model)
    print(f"{name:15} hits {result.hit_share:.3f}  effective {result.effective_hit_share:.3f}")
