"""Numba kernel: replay a workload of tasks under any policy, with the decisions of `simulate`, on flat arrays."""

from __future__ import annotations

from takeup.caching.policies.fast.layout import ALL_OR_NOTHING, PARALLEL, STORED, ReplayState
from takeup.caching.policies.fast.memory import put, touch
from takeup.caching.policies.fast.table import close_group, open_group, reopen_producers
from takeup.core.compiled import bare, inlined, kernel


@kernel
def replay_tasks(run: ReplayState) -> None:
    """Run all tasks in order; `run.totals` and the `free_s` of the workers hold the outcome."""
    if run.rules.recurring:
        for job in range(len(run.job_known)):
            _announce(run, job)
    for task in range(len(run.tasks) - 1):
        _announce(run, run.tasks[task].job)
        wait_s, num_restored = _read_inputs(run, task)
        close_group(run, task)
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
        open_group(run, run.job_tasks[place])
    if not run.rules.recompute:
        return
    for place in range(start, end):
        task = run.job_tasks[place]
        for input_place in range(run.tasks[task].inputs, run.tasks[task + 1].inputs):
            reopen_producers(run, run.inputs[input_place].block)


@inlined
def _read_inputs(run: ReplayState, task: int) -> tuple[float, int]:
    """Count hits, read inputs in memory, restore the rest; returns seconds waited and blocks restored."""
    start, end = run.tasks[task].inputs, run.tasks[task + 1].inputs
    num_present, again_s = 0, 0.0
    for place in range(start, end):
        block = run.inputs[place].block
        run.blocks[block].pinned_by = task
        if run.blocks[block].status == STORED:
            num_present += 1
            again_s += _again_s(run, block)
            touch(run, block)
    run.totals[0].hits += num_present
    if num_present == end - start:
        run.totals[0].effective_hits += num_present
        return 0.0, 0
    total_s, longest_s, num_restored = 0.0, 0.0, 0
    for place in range(start, end):
        block = run.inputs[place].block
        if run.blocks[block].status != STORED:
            seconds, num_restored = _restore(run, block, task, num_restored)
            total_s += seconds
            longest_s = max(longest_s, seconds)
    if run.rules.cost_model == PARALLEL:
        return longest_s, num_restored
    return (total_s + again_s if run.rules.cost_model == ALL_OR_NOTHING else total_s), num_restored


@inlined
def _again_s(run: ReplayState, block: int) -> float:
    """See `Simulation._again_s`."""
    record = run.blocks[block]
    if not run.rules.recompute or record.producer < 0:
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
        from_disk = not run.rules.recompute or producer < 0
        if from_disk:
            run.totals[0].read_bytes += record.bytes
            seconds += record.bytes / run.rules.disk_bytes_per_s
        elif run.scratch[depth].next_input < 0:
            run.scratch[depth].next_input = run.tasks[producer].inputs
            seconds += run.tasks[producer].compute_s
        if not from_disk and run.scratch[depth].next_input < run.tasks[producer + 1].inputs:
            needed = run.inputs[run.scratch[depth].next_input].block
            run.scratch[depth].next_input += 1
            if run.blocks[needed].status == STORED:
                touch(run, needed)
            elif run.blocks[needed].obtained_by != task:
                depth += 1
                run.scratch[depth].stack, run.scratch[depth].next_input = needed, -1
            continue
        if not from_disk:
            run.totals[0].recomputed += 1
            close_group(run, producer)
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
