"""Replay a workload with the compiled kernel: lay it out as arrays, run, and read the totals as a `CachingResult`."""

import numpy as np

from takeup.caching.contract import PolicySpec
from takeup.caching.model import CachingResult, EngineModel, Workload
from takeup.caching.policies.dag import NUM_CONSUMERS
from takeup.caching.policies.s3fifo import queue_bytes
from takeup.caching.simulate.compiled import layout
from takeup.caching.simulate.compiled.layout import Records, ReplayRules, ReplayState
from takeup.caching.simulate.compiled.tasks import replay_tasks
from takeup.core.arrays import Ints


def replay(spec: PolicySpec, workload: Workload, engine: EngineModel) -> CachingResult:
    """The same result as `simulate(spec, workload, engine)`, at millions of accesses per second."""
    run = _lay_out(workload, _rules(spec, workload, engine))
    replay_tasks(run)
    totals = run.totals[0]
    names = ("hits", "effective_hits", "evictions", "broadcasts", "refused", "recomputed")
    return CachingResult(
        policy=spec.name,
        workload=workload.name,
        capacity_bytes=engine.capacity_bytes,
        num_accesses=workload.num_accesses,
        **{f"num_{name}": int(totals[name]) for name in names},
        read_bytes=int(totals["read_bytes"]),
        written_bytes=int(totals["written_bytes"]),
        inactive_share=float(totals["inactive"] / max(1.0, totals["used"])),
        task_time_s=float(totals["task_time_s"]),
        makespan_s=float(run.workers["free_s"].max()),
    )


def _rules(spec: PolicySpec, workload: Workload, engine: EngineModel) -> ReplayRules:
    worker_bytes = engine.capacity_bytes // workload.num_workers
    small_bytes, ghost_bytes = queue_bytes(worker_bytes)
    policy = layout.POLICY_CODES[spec.base]
    return ReplayRules(
        policy=policy,
        admission=spec.admission,
        recurring=engine.profile == "recurring" or spec.offline,
        recompute=engine.miss == "recompute",
        cost_model=layout.COST_MODELS[engine.cost_model],
        disk_bytes_per_s=float(engine.disk_bytes_per_s),
        worker_bytes=worker_bytes,
        small_bytes=small_bytes,
        ghost_bytes=ghost_bytes,
        stages_ascend=bool(np.all(np.diff(workload.task_stage) >= 0)),
        tracks_groups=policy == layout.LERC or (policy == layout.DAG and engine.cost_model != "additive"),
    )


def _lay_out(workload: Workload, rules: ReplayRules) -> ReplayState:
    by_block = np.argsort(workload.input_blocks, kind="stable")
    user_starts = _starts(workload.input_blocks, workload.num_blocks)
    job_ids, task_job = np.unique(workload.task_job, return_inverse=True)
    num_blocks = workload.num_blocks
    return ReplayState(
        rules=rules,
        blocks=_blocks(workload, user_starts),
        tasks=_tasks(workload, task_job),
        inputs=_inputs(workload, by_block, user_starts),
        outputs=workload.output_blocks,
        users=np.repeat(np.arange(workload.num_tasks), np.diff(workload.input_starts))[by_block],
        workers=_workers(workload, rules),
        queues=_records(layout.QUEUE, 3 * workload.num_workers, oldest=-1, newest=-1),
        stages=_records(layout.STAGE, len(workload.stage_after), after=workload.stage_after),
        job_starts=_starts(task_job, len(job_ids)),
        job_tasks=np.argsort(task_job, kind="stable"),
        job_known=np.zeros(len(job_ids), np.bool_),
        scratch=_records(layout.SCRATCH, 1 + num_blocks + (workload.num_accesses if rules.recompute else 0)),
        nearest=_records(layout.NEAREST, NUM_CONSUMERS + 1),
        totals=_records(layout.TOTALS, 1),
    )


def _blocks(workload: Workload, user_starts: Ints) -> Records:
    return _records(
        layout.BLOCK,
        workload.num_blocks,
        bytes=workload.block_bytes,
        worker=workload.block_worker,
        producer=workload.block_producer,
        users=user_starts[:-1],
        on_disk=workload.block_producer < 0,
        heap_place=-1,
        obtained_by=-1,
        pinned_by=-1,
        older=-1,
        newer=-1,
    )


def _tasks(workload: Workload, task_job: Ints) -> Records:
    """One record more than there are tasks, so that `tasks[task + 1]` says where a task's inputs and outputs end."""
    tasks = _records(layout.TASK, workload.num_tasks + 1, inputs=workload.input_starts, outputs=workload.output_starts)
    columns = {
        "job": task_job,
        "stage": workload.task_stage,
        "stage_now": workload.task_stage,
        "worker": workload.task_worker,
        "compute_s": workload.task_compute_s,
        "position": workload.positions_bytes(),
    }
    for name, values in columns.items():
        tasks[name][:-1] = values
    return tasks


def _inputs(workload: Workload, by_block: Ints, user_starts: Ints) -> Records:
    inputs = _records(layout.INPUT, workload.num_accesses, block=workload.input_blocks)
    inputs["user"][by_block] = np.arange(workload.num_accesses) - user_starts[workload.input_blocks[by_block]]
    return inputs


def _workers(workload: Workload, rules: ReplayRules) -> Records:
    heap_starts = _starts(workload.block_worker, workload.num_workers)[:-1]
    return _records(layout.WORKER, workload.num_workers, heap_start=heap_starts, free_bytes=rules.worker_bytes, hand=-1)


def _records(kind: np.dtype[np.void], count: int, **columns: object) -> Records:
    records = np.zeros(count, kind)
    for name, values in columns.items():
        records[name] = values
    return records


def _starts(keys: Ints, num_keys: int) -> Ints:
    """Where the run of each key begins once the keys are sorted, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(np.bincount(keys, minlength=num_keys)))).astype(np.int64)
