"""Replay a workload with a numba kernel: lay it out as arrays, run its tasks, and read the totals as a result."""

import numpy as np

from takeup.caching.contract import PolicySpec
from takeup.caching.model import Bools, CachingResult, EngineModel, Workload
from takeup.caching.policies.dag import NUM_CONSUMERS
from takeup.caching.simulate.compiled import group_table, layout
from takeup.caching.simulate.compiled.layout import Records, ReplayRules, ReplayState
from takeup.caching.simulate.plain import simulate
from takeup.core.arrays import Ints
from takeup.core.compiled import bare, inlined, kernel


def replay(spec: PolicySpec, workload: Workload, engine: EngineModel) -> CachingResult:
    """The same result as `simulate(spec, workload, engine)`, at millions of accesses per second where a kernel has it.

    Policies that rank by past reads or keep queues have none: they serve to compare, and run in `simulate` itself.
    """
    if spec.base not in layout.POLICY_CODES:
        return simulate(spec, workload, engine)
    run = _lay_out(workload, _rules(spec, workload, engine), workload.recomputes(engine.miss))
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
    policy = layout.POLICY_CODES[spec.base]
    return ReplayRules(
        policy=policy,
        admission=spec.admission,
        recurring=engine.profile == "recurring" or spec.offline,
        recompute=bool(workload.recomputes(engine.miss).any()),
        all_or_nothing=engine.cost_model == "all-or-nothing",
        disk_bytes_per_s=float(engine.disk_bytes_per_s),
        worker_bytes=worker_bytes,
        stages_ascend=bool(np.all(np.diff(workload.task_stage) >= 0)),
        spares_siblings=spec.base == "spark",
        num_datasets=1 + int(workload.block_dataset.max(initial=-1)),
        tracks_groups=policy == layout.LERC,
    )


def _lay_out(workload: Workload, rules: ReplayRules, recomputes: Bools) -> ReplayState:
    by_block = np.argsort(workload.input_blocks, kind="stable")
    user_starts = _starts(workload.input_blocks, workload.num_blocks)
    job_ids, task_job = np.unique(workload.task_job, return_inverse=True)
    num_blocks = workload.num_blocks
    return ReplayState(
        rules=rules,
        blocks=_blocks(workload, user_starts, recomputes),
        tasks=_tasks(workload, task_job),
        inputs=_inputs(workload, by_block, user_starts),
        outputs=workload.output_blocks,
        ending=np.argsort(workload.block_ends, kind="stable"),
        dataset_bytes=np.zeros(rules.num_datasets * workload.num_workers + 1, np.int64),
        users=np.repeat(np.arange(workload.num_tasks), np.diff(workload.input_starts))[by_block],
        workers=_workers(workload, rules),
        stages=_records(layout.STAGE, len(workload.stage_after), after=workload.stage_after),
        job_starts=_starts(task_job, len(job_ids)),
        job_tasks=np.argsort(task_job, kind="stable"),
        job_known=np.zeros(len(job_ids), np.bool_),
        scratch=_records(layout.SCRATCH, 1 + num_blocks + (workload.num_accesses if rules.recompute else 0)),
        nearest=np.zeros(NUM_CONSUMERS + 1),
        totals=_records(layout.TOTALS, 1),
    )


def _blocks(workload: Workload, user_starts: Ints, recomputes: Bools) -> Records:
    return _records(
        layout.BLOCK,
        workload.num_blocks,
        bytes=workload.block_bytes,
        worker=workload.block_worker,
        producer=workload.block_producer,
        recomputes=recomputes,
        dataset=workload.block_dataset,
        users=user_starts[:-1],
        on_disk=workload.block_producer < 0,
        heap_place=-1,
        obtained_by=-1,
        pinned_by=-1,
    )


def _tasks(workload: Workload, task_job: Ints) -> Records:
    """One record more than there are tasks, so that `tasks[task + 1]` says where a task's inputs and outputs end."""
    tasks = _records(layout.TASK, workload.num_tasks + 1, inputs=workload.input_starts, outputs=workload.output_starts)
    columns = {
        "job": task_job,
        "ending": _starts(workload.block_ends, workload.num_tasks + 1)[:-2],
        "stage": workload.task_stage,
        "stage_now": workload.task_stage,
        "worker": workload.task_worker,
        "compute_s": workload.task_compute_s,
        "position": workload.positions_bytes(),
    }
    for name, values in columns.items():
        tasks[name][:-1] = values
    tasks["ending"][-1] = np.count_nonzero(workload.block_ends < workload.num_tasks)
    return tasks


def _inputs(workload: Workload, by_block: Ints, user_starts: Ints) -> Records:
    inputs = _records(layout.INPUT, workload.num_accesses, block=workload.input_blocks)
    inputs["user"][by_block] = np.arange(workload.num_accesses) - user_starts[workload.input_blocks[by_block]]
    return inputs


def _workers(workload: Workload, rules: ReplayRules) -> Records:
    heap_starts = _starts(workload.block_worker, workload.num_workers)[:-1]
    return _records(layout.WORKER, workload.num_workers, heap_start=heap_starts, free_bytes=rules.worker_bytes)


def _records(kind: np.dtype[np.void], count: int, **columns: object) -> Records:
    records = np.zeros(count, kind)
    for name, values in columns.items():
        records[name] = values
    return records


def _starts(keys: Ints, num_keys: int) -> Ints:
    """Where the run of each key begins once the keys are sorted, and where the last one ends."""
    return np.concatenate(([0], np.cumsum(np.bincount(keys, minlength=num_keys)))).astype(np.int64)


# The memory of the workers on arrays: reads, evictions and puts, with the order of events of `simulate` ---------------


@inlined
def touch(run: ReplayState, block: int) -> None:
    """Update the policy's state for a read from memory."""
    record = run.blocks[block]
    run.totals[0].clock += 1
    record.last_used = run.totals[0].clock
    layout.sift(run, record.worker, record.heap_place)


@bare
def put(run: ReplayState, block: int, task: int) -> None:
    """Store the block if the policy makes room for it; the inputs of `task` are pinned."""
    record = run.blocks[block]
    if run.rules.policy == layout.DAG:
        record.cost_s = _cost_s(run, block)
    was_lost = record.status == layout.LOST
    record.status = layout.STORED
    if was_lost:
        group_table.set_missing(run, block, -1)
    if run.rules.admission:
        group_table.set_keys(run, block)
    num_chosen = _choose(run, block, task)
    if num_chosen < 0:
        run.totals[0].refused += 1
        record.status = layout.LOST
        group_table.set_missing(run, block, 1)
        _leave_memory(run, block)
        return
    run.totals[0].used_now += record.bytes
    run.totals[0].inactive_now += record.bytes if record.rc == 0 else 0
    for place in range(num_chosen):
        _evict(run, run.scratch[place].chosen)
    _enter(run, block)


@inlined
def _enter(run: ReplayState, block: int) -> None:
    """Insert the block into the order of its worker."""
    record = run.blocks[block]
    run.workers[record.worker].free_bytes -= record.bytes
    _count_dataset(run, block, 1)
    run.totals[0].clock += 1
    record.last_used = run.totals[0].clock
    if run.rules.policy >= layout.LRC:
        group_table.set_keys(run, block)
    layout.push(run, record.worker, block)


@inlined
def _leave_memory(run: ReplayState, block: int) -> None:
    record = run.blocks[block]
    if not record.recomputes and not record.on_disk:
        record.on_disk = 1
        run.totals[0].written_bytes += record.bytes
    group_table.reopen_producers(run, block)


@inlined
def _evict(run: ReplayState, block: int) -> None:
    run.totals[0].evictions += 1
    run.totals[0].broadcasts += _free(run, block)
    _leave_memory(run, block)


@bare
def _free(run: ReplayState, block: int) -> bool:
    """The block, already taken out of the policy's order, is no longer in memory; True if it broke a complete group."""
    record, worker = run.blocks[block], run.workers[run.blocks[block].worker]
    worker.free_bytes += record.bytes
    _count_dataset(run, block, -1)
    run.totals[0].used_now -= record.bytes
    run.totals[0].inactive_now -= record.bytes if record.rc == 0 else 0
    record.status = layout.LOST
    return group_table.set_missing(run, block, 1)


@bare
def _drop(run: ReplayState, block: int) -> None:
    """See `Simulation._drop`."""
    record = run.blocks[block]
    if record.status != layout.STORED:
        return
    layout.remove(run, record.worker, record.heap_place)
    _free(run, block)


@inlined
def _count_dataset(run: ReplayState, block: int, sign: int) -> None:
    record = run.blocks[block]
    if record.dataset >= 0:
        run.dataset_bytes[record.worker * run.rules.num_datasets + record.dataset] += sign * record.bytes


@inlined
def _sibling_bytes(run: ReplayState, block: int) -> int:
    """Bytes in memory that this block must not evict, because they are of its own dataset."""
    record = run.blocks[block]
    if not run.rules.spares_siblings or record.dataset < 0:
        return 0
    return run.dataset_bytes[record.worker * run.rules.num_datasets + record.dataset]


@inlined
def _is_spared(run: ReplayState, victim: int, block: int) -> bool:
    """Whether Spark's rule keeps the victim: always, or under admission where no reader is known of either."""
    one, other = run.blocks[victim], run.blocks[block]
    holds = run.rules.spares_siblings or (run.rules.admission and one.rc == 0 and other.rc == 0)
    return holds and one.dataset >= 0 and one.dataset == other.dataset


@bare
def _choose(run: ReplayState, block: int, task: int) -> int:
    """Put the victims for `block` into `chosen` and off the heap; returns their number, or -1 if it is refused."""
    worker, size_bytes = run.blocks[block].worker, run.blocks[block].bytes
    free_bytes, num_chosen, num_aside = run.workers[worker].free_bytes, 0, 0
    if size_bytes > run.rules.worker_bytes - _sibling_bytes(run, block):
        return -1
    while free_bytes < size_bytes and run.workers[worker].heap_size > 0:
        victim = layout.top(run, worker)
        if run.rules.admission and run.blocks[victim].rc > 0 and not layout.has_lower_rank(run, victim, block):
            break
        layout.pop(run, worker)
        if _is_spared(run, victim, block) or run.blocks[victim].pinned_by == task:
            run.scratch[num_aside].aside = victim
            num_aside += 1
        else:
            run.scratch[num_chosen].chosen = victim
            num_chosen += 1
            free_bytes += run.blocks[victim].bytes
    for place in range(num_aside):
        layout.push(run, worker, run.scratch[place].aside)
    if free_bytes >= size_bytes:
        return num_chosen
    for place in range(num_chosen):
        layout.push(run, worker, run.scratch[place].chosen)
    return -1


@inlined
def _cost_s(run: ReplayState, block: int) -> float:
    """See `Simulation._cost_s`."""
    record, task = run.blocks[block], run.blocks[block].producer
    if not record.recomputes:
        return record.bytes / run.rules.disk_bytes_per_s * (1 if record.on_disk else 2)
    seconds = 0.0
    for place in range(run.tasks[task].inputs, run.tasks[task + 1].inputs):
        needed = run.blocks[run.inputs[place].block]
        seconds += needed.cost_s if needed.status == layout.LOST else 0.0
    return run.tasks[task].compute_s + seconds


# Numba kernel: replay a workload of tasks under any policy, with the decisions of `simulate`, on flat arrays ----------


@kernel
def replay_tasks(run: ReplayState) -> None:
    """Run all tasks in order; `run.totals` and the `free_s` of the workers hold the outcome."""
    if run.rules.recurring:
        for job in range(len(run.job_known)):
            _announce(run, job)
    for task in range(len(run.tasks) - 1):
        _announce(run, run.tasks[task].job)
        for place in range(run.tasks[task].ending, run.tasks[task + 1].ending):
            _drop(run, run.ending[place])
        wait_s, num_restored = _read_inputs(run, task)
        group_table.close_group(run, task)
        for place in range(num_restored):
            put(run, run.scratch[place].restored, task)
        for place in range(run.tasks[task].outputs, run.tasks[task + 1].outputs):
            put(run, run.outputs[place], task)
        _advance(run, task, wait_s)
        run.totals[0].inactive += run.totals[0].inactive_now
        run.totals[0].used += run.totals[0].used_now


@bare
def _announce(run: ReplayState, job: int) -> None:
    """Open the groups of the consumers of a job."""
    if run.job_known[job]:
        return
    run.job_known[job] = True
    start, end = run.job_starts[job], run.job_starts[job + 1]
    for place in range(start, end):
        group_table.open_group(run, run.job_tasks[place])
    if not run.rules.recompute:
        return
    for place in range(start, end):
        task = run.job_tasks[place]
        for input_place in range(run.tasks[task].inputs, run.tasks[task + 1].inputs):
            group_table.reopen_producers(run, run.inputs[input_place].block)


@inlined
def _read_inputs(run: ReplayState, task: int) -> tuple[float, int]:
    """Count hits, read inputs in memory, restore the rest; returns seconds waited and blocks restored."""
    start, end = run.tasks[task].inputs, run.tasks[task + 1].inputs
    num_present, again_s = 0, 0.0
    for place in range(start, end):
        block = run.inputs[place].block
        run.blocks[block].pinned_by = task
        if run.blocks[block].status == layout.STORED:
            num_present += 1
            again_s += _again_s(run, block)
            touch(run, block)
    run.totals[0].hits += num_present
    if num_present == end - start:
        run.totals[0].effective_hits += num_present
        return 0.0, 0
    total_s, num_restored = 0.0, 0
    for place in range(start, end):
        block = run.inputs[place].block
        if run.blocks[block].status != layout.STORED:
            seconds, num_restored = _restore(run, block, task, num_restored)
            total_s += seconds
    return (total_s + again_s if run.rules.all_or_nothing else total_s), num_restored


@inlined
def _again_s(run: ReplayState, block: int) -> float:
    """See `Simulation._again_s`."""
    record = run.blocks[block]
    if not record.recomputes:
        return record.bytes / run.rules.disk_bytes_per_s
    return run.tasks[record.producer].compute_s


@bare
def _restore(run: ReplayState, first: int, task: int, num_restored: int) -> tuple[float, int]:
    """Restore a missing block, with the inputs it needs, and append all of them to `restored`.

    The recursion of the plain version is a stack of blocks, each with the index of its next input to visit.
    """
    seconds, depth = 0.0, 0
    if run.blocks[first].obtained_by == task:
        return seconds, num_restored
    run.scratch[0].stack, run.scratch[0].next_input = first, -1
    while depth >= 0:
        block = run.scratch[depth].stack
        record, producer = run.blocks[block], run.blocks[block].producer
        from_disk = record.recomputes == 0
        if from_disk:
            run.totals[0].read_bytes += record.bytes
            seconds += record.bytes / run.rules.disk_bytes_per_s
        elif run.scratch[depth].next_input < 0:
            run.scratch[depth].next_input = run.tasks[producer].inputs
            seconds += run.tasks[producer].compute_s
        if not from_disk and run.scratch[depth].next_input < run.tasks[producer + 1].inputs:
            needed = run.inputs[run.scratch[depth].next_input].block
            run.scratch[depth].next_input += 1
            if run.blocks[needed].status == layout.STORED:
                touch(run, needed)
            elif run.blocks[needed].obtained_by != task:
                depth += 1
                run.scratch[depth].stack, run.scratch[depth].next_input = needed, -1
            continue
        if not from_disk:
            run.totals[0].recomputed += 1
            group_table.close_group(run, producer)
        record.obtained_by = task
        run.scratch[num_restored].restored = block
        num_restored += 1
        depth -= 1
    return seconds, num_restored


@inlined
def _advance(run: ReplayState, task: int, wait_s: float) -> None:
    """See `Timeline.advance`."""
    record, worker = run.tasks[task], run.workers[run.tasks[task].worker]
    stage = run.stages[record.stage]
    start_s = worker.free_s
    if stage.after >= 0:
        start_s = max(start_s, run.stages[stage.after].end_s)
    for place in range(record.inputs, run.tasks[task + 1].inputs):
        start_s = max(start_s, run.blocks[run.inputs[place].block].ready_s)
    duration_s = wait_s + record.compute_s
    run.totals[0].task_time_s += duration_s
    worker.free_s = start_s + duration_s
    stage.end_s = max(stage.end_s, worker.free_s)
    for place in range(record.outputs, run.tasks[task + 1].outputs):
        run.blocks[run.outputs[place]].ready_s = worker.free_s
