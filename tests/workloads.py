"""Random small workloads for property tests: a few workers, blocks of unequal size, tasks that read together."""

from __future__ import annotations

from hypothesis import strategies as st

from takeup.caching.model import EngineModel, Workload
from takeup.caching.traces.job_graph import WorkloadBuilder


@st.composite
def workloads(draw: st.DrawFn, max_tasks: int = 25) -> Workload:
    """Tasks read any blocks written so far, or source blocks, and write new ones; jobs and stages interleave."""
    builder = WorkloadBuilder("random")
    num_workers = draw(st.integers(1, 3))
    blocks = [f"source{index}" for index in range(draw(st.integers(0, 3)))]
    for name in blocks:
        builder.block(name, draw(st.integers(1, 4)), draw(st.integers(0, num_workers - 1)))
    stages = [builder.stage()]
    for index in range(draw(st.integers(1, max_tasks))):
        if draw(st.booleans()):
            stages.append(builder.stage(after=draw(st.sampled_from([-1, stages[-1]]))))
        inputs = draw(st.lists(st.sampled_from(blocks), max_size=4, unique=True)) if blocks else []
        outputs = [f"block{index}.{place}" for place in range(draw(st.integers(0, 2)))]
        for name in outputs:
            worker = draw(st.integers(0, num_workers - 1))
            dataset, spills = draw(st.sampled_from([(-1, False), (0, False), (1, True), (2, False)]))
            builder.block(name, draw(st.integers(1, 4)), worker, dataset=dataset, spills=spills)
        if blocks and draw(st.integers(0, 4)) == 0:
            builder.drop(draw(st.sampled_from(blocks)))
        builder.task(
            inputs=inputs,
            outputs=outputs,
            job=draw(st.integers(0, 2)),
            stage=draw(st.sampled_from(stages)),
            worker=draw(st.integers(0, num_workers - 1)),
            compute_s=draw(st.sampled_from([0.0, 0.25, 1.0, 4.0])),
        )
        blocks += outputs
    return builder.build()


engines = st.builds(
    EngineModel,
    capacity_bytes=st.integers(1, 40),
    miss=st.sampled_from(["disk", "recompute", "level"]),
    cost_model=st.sampled_from(["additive", "all-or-nothing"]),
    profile=st.sampled_from(["online", "recurring"]),
    disk_bytes_per_s=st.sampled_from([1.0, 8.0]),
)
