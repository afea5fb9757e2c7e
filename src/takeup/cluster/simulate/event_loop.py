"""Numba kernels: event queue of a replay, the record of what happened, and the event loop of one pool.

The queue is a binary heap by time; ties are broken by insertion order. True durations are kept here, where no scheduler
reads them.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from takeup.cluster.scheduling import layout
from takeup.cluster.scheduling.counters import end_promise, enqueue, evict, release_nodes
from takeup.cluster.scheduling.layout import Fleet
from takeup.cluster.scheduling.placement import update_calmness
from takeup.cluster.scheduling.rules import PACKED, SchedulerRules
from takeup.cluster.scheduling.scheduling_pass import run_arrival_pass, run_pass
from takeup.core.arrays import Floats, Ints, record
from takeup.core.compiled import inner, kernel

Records = npt.NDArray[np.void]

ENTRY = record([("when_s", np.float64), ("number", np.int64), ("what", np.int64), ("job", np.int64), ("run", np.int64)])


class EventQueue(NamedTuple):
    """Entries in heap order; `counts` holds the current number and the total ever inserted."""

    entries: Records
    counts: Ints


def empty_queue(most: int) -> EventQueue:
    """An event queue with capacity for `most` entries."""
    return EventQueue(np.zeros(most, ENTRY), np.zeros(2, np.int64))


@inner
def next_s(agenda: EventQueue) -> float:
    """Time of the next event; infinite if there is none."""
    return float(agenda.entries[0].when_s) if agenda.counts[0] > 0 else np.inf


@inner
def _is_before(one: np.void, other: np.void) -> bool:
    return bool(one.when_s < other.when_s or (one.when_s == other.when_s and one.number < other.number))  # type: ignore[attr-defined]


@inner
def push(agenda: EventQueue, when_s: float, what: int, job: int, run: int) -> None:
    """Schedule an event for this run of a job."""
    agenda.counts[1] += 1
    push_again(agenda, when_s, agenda.counts[1], what, job, run)


@inner
def push_again(agenda: EventQueue, when_s: float, number: int, what: int, job: int, run: int) -> None:
    """Insert an event under the sequence number that it had before."""
    place, entries = agenda.counts[0], agenda.entries
    agenda.counts[0] += 1
    while place > 0:
        above = entries[(place - 1) // 2]
        if above.when_s < when_s or (above.when_s == when_s and above.number < number):
            break
        entries[place] = above
        place = (place - 1) // 2
    it = entries[place]
    it.when_s, it.number, it.what, it.job, it.run = when_s, number, what, job, run


@inner
def pop(agenda: EventQueue) -> tuple[int, int, int]:
    """Remove the first entry; returns the event type, the job and the number of its run."""
    entries = agenda.entries
    answer = (entries[0].what, entries[0].job, entries[0].run)
    agenda.counts[0] -= 1
    size = agenda.counts[0]
    place, child = 0, 1
    while child < size:
        if child + 1 < size and _is_before(entries[child + 1], entries[child]):
            child += 1
        if not _is_before(entries[child], entries[size]):
            break
        entries[place] = entries[child]
        place, child = child, 2 * child + 1
    entries[place] = entries[size]
    return answer


# Numba kernels: what happened in a replay. The true durations live here, where no scheduler looks ---------------------
#
# How it works. Useful time is work that is never done again, without overheads: all allocated time less what a run
# spent on its restart and lost at its end. `done_s` is the work that a job can never lose again; a run adds to it from
# `start + overhead` on. Work is saved whenever the total reaches a multiple of the job's checkpoint interval, so
# intervals continue across restarts.

TINY_S = 1e-6
FINISH, PERIOD, LEAVE, PROMISE = range(4)  # what is on the agenda
NUM_STARTS, NUM_KEPT, NUM_BROKEN, NUM_PROMISES_KEPT, NUM_PROMISES_BROKEN = range(
    5
)  # columns of `counts`, by hour and grade
ALLOCATED, USEFUL, LOST = range(3)  # columns of `gpu_s`, for each hour and grade
NEXT_JOB, FIRST_EVICTION, NUM_EVICTIONS, CHANGED, PROMISES_KEPT, PROMISES_BROKEN, NEWCOMER = range(
    7
)  # places of `ticks`


class ReplayRecord(NamedTuple):
    """Per job: work and waits. Per hour (the last one holds everything later): `counts`, `gpu_s`, and demand."""

    duration_s: Floats
    done_s: Floats
    overhead_s: Floats
    queued_s: Floats
    first_start_s: Floats
    end_s: Floats
    lost_gpu_s: Floats
    run: Ints
    leased: Ints
    counts: Ints
    gpu_s: Floats
    demand: Floats
    demand_now: Floats
    evicted_s: Floats
    evicted_node: Ints
    ticks: Ints


def empty_record(duration_s: Floats, num_hours: int, num_organisations: int, most_evictions: int) -> ReplayRecord:
    """Nothing has happened yet."""
    num_jobs = len(duration_s)
    done, overhead, queued, lost = np.zeros((4, num_jobs))
    first_start, end = np.full((2, num_jobs), np.nan)
    run, leased = np.zeros((2, num_jobs), np.int64)
    counts, gpu_s = np.zeros((num_hours, 3, 5), np.int64), np.zeros((num_hours, 3, 3))
    demand, demand_now = np.zeros((num_hours, num_organisations)), np.zeros(num_organisations)
    evicted_s, evicted_node = np.zeros(most_evictions), np.zeros(most_evictions, np.int64)
    return ReplayRecord(
        duration_s, done, overhead, queued, first_start, end, lost, run, leased, counts, gpu_s, demand,
        demand_now, evicted_s, evicted_node, np.array([0, 0, 0, 0, 0, 0, -1]),
    )  # fmt: skip


@inner
def hour_of(story: ReplayRecord, when_s: float) -> int:
    """The row of an hour."""
    return min(int(when_s // 3600.0), len(story.counts) - 1)


@inner
def account(fleet: Fleet, story: ReplayRecord, from_s: float, to_s: float) -> None:
    """Add up the GPUs that ran from one moment to another, and carry the demand into new hours."""
    hour, last = hour_of(story, from_s), hour_of(story, to_s)
    while hour <= last:
        until_s = to_s if hour == last else (hour + 1) * 3600.0
        for grade in range(3):
            amount = (until_s - from_s) * fleet.totals[layout.RUNNING_MILLI + grade] / 1000.0
            story.gpu_s[hour, grade, ALLOCATED] += amount
            story.gpu_s[hour, grade, USEFUL] += amount
        from_s = until_s
        hour += 1
        if hour <= last:
            story.demand[hour] = story.demand_now


@inner
def count_period(story: ReplayRecord, grade: int, now_s: float, column: int) -> None:
    """A spot run lasted for a period, or was evicted before."""
    story.counts[hour_of(story, now_s), grade, column] += 1


@inner
def _count_promise(story: ReplayRecord, now_s: float, is_kept: bool) -> None:
    """A promise was kept or broken; each run of a guaranteed job counts once, until its hours are over."""
    column = NUM_PROMISES_KEPT if is_kept else NUM_PROMISES_BROKEN
    story.counts[hour_of(story, now_s), 1, column] += 1
    story.ticks[PROMISES_KEPT if is_kept else PROMISES_BROKEN] += 1


@inner
def _end_run(
    fleet: Fleet, story: ReplayRecord, job: int, grade: int, now_s: float, ran_s: float, lost_s: float
) -> None:
    """Take overhead and lost work of a run that ended now out of the useful time of the hours in which they fell."""
    num_gpus, start_s = fleet.jobs[job].milli * fleet.jobs[job].workers / 1000.0, now_s - ran_s
    _waste(story, grade, start_s, min(now_s, start_s + story.overhead_s[job]), num_gpus)
    _waste(story, grade, now_s - lost_s, now_s, num_gpus)


@inner
def _waste(story: ReplayRecord, grade: int, from_s: float, to_s: float, num_gpus: float) -> None:
    last = len(story.counts) - 1
    while from_s < to_s:
        hour = hour_of(story, from_s)
        until_s = to_s if hour == last else min(to_s, (hour + 1) * 3600.0)
        story.gpu_s[hour, grade, USEFUL] -= (until_s - from_s) * num_gpus
        from_s = until_s


@inner
def _progress_s(story: ReplayRecord, job: int, ran_s: float) -> float:
    return float(story.done_s[job] + max(0.0, ran_s - story.overhead_s[job]))


@inner
def save(story: ReplayRecord, job: int, ran_s: float) -> None:
    """All work of a run so far is safe."""
    story.done_s[job] = _progress_s(story, job, ran_s)


@inner
def read_log(fleet: Fleet, story: ReplayRecord, agenda: EventQueue, now_s: float, rules: SchedulerRules) -> None:
    """Live through what was decided."""
    for place in range(fleet.totals[layout.NUM_LOGGED]):
        line = fleet.log[place]
        if line.what == layout.STARTED:
            _begin(fleet, story, agenda, line.job, now_s, line.other > 0, rules)
        elif line.what == layout.EVICTED:
            _lose(fleet, story, line.job, line.grade, now_s, line.ran_s)
        elif line.what == layout.LEASE_OVER:
            save(story, line.job, line.ran_s)
            _end_run(fleet, story, line.job, line.grade, now_s, line.ran_s, 0.0)
            story.leased[line.job] = 1
        elif line.what == layout.NOTICED:
            push(agenda, now_s + line.ran_s, LEAVE, line.job, story.run[line.job])
    if rules.lease_s > 0:
        for place in range(fleet.totals[layout.NUM_LOGGED]):
            line = fleet.log[place]
            if line.what == layout.LEASE_OVER and fleet.jobs[line.job].running == 0 and story.leased[line.job] == 1:
                story.leased[line.job] = 0
                if fleet.jobs[line.job].kind == 1:
                    fleet.jobs[line.job].num_evictions += 1
                    count_period(story, line.grade, now_s, NUM_BROKEN)


@inner
def _lose(fleet: Fleet, story: ReplayRecord, job: int, grade: int, now_s: float, ran_s: float) -> None:
    it = fleet.jobs[job]
    progress_s = _progress_s(story, job, ran_s)
    saved_s = story.done_s[job]
    if np.isfinite(it.checkpoint_s):
        saved_s = max(saved_s, np.floor(progress_s / it.checkpoint_s) * it.checkpoint_s)
    lost = (progress_s - saved_s) * it.milli * it.workers / 1000.0
    story.done_s[job] = saved_s
    story.lost_gpu_s[job] += lost
    story.gpu_s[hour_of(story, now_s), grade, LOST] += lost
    count_period(story, grade, now_s, NUM_BROKEN)
    _end_run(fleet, story, job, grade, now_s, ran_s, progress_s - saved_s)
    if grade == 1 and ran_s < 3600.0 * it.guarantee_h - TINY_S:
        _count_promise(story, now_s, False)


@inner
def _begin(
    fleet: Fleet, story: ReplayRecord, agenda: EventQueue, job: int, now_s: float, preempts: bool, rules: SchedulerRules
) -> None:
    it = fleet.jobs[job]
    num_gpus = it.milli * it.workers / 1000.0
    overhead_s = 0.0
    if story.leased[job] == 1:
        overhead_s = 0.0 if rules.lease_moved_only else rules.lease_overhead_s
    elif it.num_evictions > 0 or preempts:
        overhead_s = rules.restart_small_s if num_gpus <= 8 else rules.restart_large_s
        overhead_s = max(overhead_s, rules.lease_overhead_s)
    if story.leased[job] == 0:
        story.queued_s[job] += now_s - it.since_s
        story.counts[hour_of(story, now_s), it.grade, NUM_STARTS] += 1
    if np.isnan(story.first_start_s[job]):
        story.first_start_s[job] = now_s
    story.leased[job] = 0
    story.overhead_s[job] = overhead_s
    story.run[job] += 1
    works_from_s = now_s + overhead_s - story.done_s[job]
    if np.isfinite(it.checkpoint_s):
        it.first_save_s = works_from_s + (np.floor(story.done_s[job] / it.checkpoint_s) + 1) * it.checkpoint_s
    push(agenda, works_from_s + story.duration_s[job], FINISH, job, story.run[job])
    if it.kind == 1:
        push(agenda, now_s + rules.period_s, PERIOD, job, story.run[job])
    if it.grade == 1:
        push(agenda, now_s + 3600.0 * it.guarantee_h, PROMISE, job, story.run[job])


# Event loop of one pool: arrivals, ends, kept periods, evictions after notice, and ticks ------------------------------
#
# All events of one moment are processed first; then the scheduler decides once. Between events nothing changes, so a
# quiet week costs nothing. Ticks occur every five minutes, and only while jobs wait, or also while jobs run under
# leases: rules with a duration act then. An engine looks every second; so when an eviction may pay for a job that waits
# there is a tick too, five seconds after the last event at the earliest.

TICK_S, PAUSE_S = 300.0, 5.0
NOW, CALM_AT = range(2)  # indices of `clock`


@kernel
def run_until(
    fleet: Fleet,
    story: ReplayRecord,
    agenda: EventQueue,
    clock: Floats,
    until_s: float,
    hours: Floats,
    quota: Floats,
    rules: SchedulerRules,
) -> int:
    """Process all events before `until_s`; returns the number of scheduling passes."""
    num_turns = 0
    while True:
        if agenda.counts[0] > len(agenda.entries) - 4 * len(fleet.jobs):
            _drop_stale(fleet, story, agenda)
        if story.ticks[CHANGED] or story.ticks[NEWCOMER] >= 0:
            _decide(fleet, story, agenda, clock, hours, quota, rules)
            num_turns += 1
        tick_s = _tick_s(fleet, clock[NOW], rules)
        when_s = min(_arrival_s(fleet, story), next_s(agenda), tick_s)
        if when_s >= until_s or when_s == np.inf:
            if until_s < np.inf:
                account(fleet, story, clock[NOW], until_s)
                clock[NOW] = until_s
            return num_turns
        account(fleet, story, clock[NOW], when_s)
        clock[NOW] = when_s
        story.ticks[CHANGED] = when_s == tick_s or when_s % TICK_S == 0.0
        while next_s(agenda) <= when_s:
            what, job, run = pop(agenda)
            if fleet.jobs[job].running and story.run[job] == run:
                _handle_event(fleet, story, agenda, what, job, when_s, rules)
        while _arrival_s(fleet, story) <= when_s:
            _arrive(fleet, story, when_s, rules)


@inner
def _drop_stale(fleet: Fleet, story: ReplayRecord, agenda: EventQueue) -> None:
    """Remove events of runs that are over."""
    old = agenda.entries[: agenda.counts[0]].copy()
    agenda.counts[0] = 0
    for place in range(len(old)):
        it = old[place]
        if fleet.jobs[it.job].running and story.run[it.job] == it.run:
            push_again(agenda, it.when_s, it.number, it.what, it.job, it.run)


@inner
def _arrival_s(fleet: Fleet, story: ReplayRecord) -> float:
    job = story.ticks[NEXT_JOB]
    return float(fleet.jobs[job].submit_s) if job < len(fleet.jobs) else np.inf


@inner
def _tick_s(fleet: Fleet, now_s: float, rules: SchedulerRules) -> float:
    num_high = fleet.totals[layout.NUM_WAITING_HIGH]
    busy = num_high + fleet.totals[layout.NUM_WAITING_SPOT]
    busy += fleet.totals[layout.NUM_RUNNING] if rules.lease_s > 0.0 else 0
    tick_s = (np.floor(now_s / TICK_S) + 1.0) * TICK_S if busy > 0 else np.inf
    for place in range(num_high if rules.wait_price < np.inf else 0):
        retry_s = fleet.jobs[fleet.high_queue[place]].retry_s
        if retry_s > now_s:
            tick_s = min(tick_s, max(retry_s, now_s + PAUSE_S))
    return float(tick_s)


@inner
def _arrive(fleet: Fleet, story: ReplayRecord, now_s: float, rules: SchedulerRules) -> None:
    job = story.ticks[NEXT_JOB]
    story.ticks[NEXT_JOB] += 1
    story.ticks[CHANGED] |= story.ticks[NEWCOMER] >= 0
    story.ticks[NEWCOMER] = job
    enqueue(fleet, job, now_s, rules)
    _change_demand(fleet, story, job, now_s, 1.0)


@inner
def _change_demand(fleet: Fleet, story: ReplayRecord, job: int, now_s: float, sign: float) -> None:
    it = fleet.jobs[job]
    if it.kind == 0:
        story.demand_now[it.organisation] += sign * it.milli * it.workers / 1000.0
        hour = hour_of(story, now_s)
        story.demand[hour, it.organisation] = max(
            story.demand[hour, it.organisation], story.demand_now[it.organisation]
        )


@inner
def _handle_event(
    fleet: Fleet, story: ReplayRecord, agenda: EventQueue, what: int, job: int, now_s: float, rules: SchedulerRules
) -> None:
    it = fleet.jobs[job]
    if what == FINISH:
        if it.kind == 1:
            count_period(story, it.grade, now_s, NUM_KEPT)
        if it.grade == 1 and now_s <= it.start_s + 3600.0 * it.guarantee_h:
            _count_promise(story, now_s, True)
        _end_run(fleet, story, job, it.grade, now_s, now_s - it.start_s, 0.0)
        release_nodes(fleet, job)
        story.end_s[job] = now_s
        story.done_s[job] = story.duration_s[job]
        _change_demand(fleet, story, job, now_s, -1.0)
        story.ticks[CHANGED] = 1
    elif what == PERIOD:
        count_period(story, it.grade, now_s, NUM_KEPT)
        push(agenda, now_s + rules.period_s, PERIOD, job, story.run[job])
    elif what == PROMISE:
        end_promise(fleet, job)
        _count_promise(story, now_s, True)
    elif what == LEAVE:
        _leave(fleet, story, job, now_s, rules)


@inner
def _leave(fleet: Fleet, story: ReplayRecord, job: int, now_s: float, rules: SchedulerRules) -> None:
    """Evict a job that has saved its work, at the end of its notice."""
    it = fleet.jobs[job]
    ran_s = now_s - it.start_s
    save(story, job, ran_s)
    _end_run(fleet, story, job, it.grade, now_s, ran_s, 0.0)
    count_period(story, it.grade, now_s, NUM_BROKEN)
    if it.grade == 1 and ran_s < 3600.0 * it.guarantee_h - TINY_S:
        _count_promise(story, now_s, False)
    fleet.totals[layout.NUM_LEFT] = 0
    evict(fleet, job, it.leaving_for, now_s, 0.0, rules)
    _remember_evictions(fleet, story, now_s)
    story.ticks[CHANGED] = 1


@inner
def _decide(
    fleet: Fleet,
    story: ReplayRecord,
    agenda: EventQueue,
    clock: Floats,
    hours: Floats,
    quota: Floats,
    rules: SchedulerRules,
) -> None:
    changed, newcomer = story.ticks[CHANGED], story.ticks[NEWCOMER]
    story.ticks[CHANGED], story.ticks[NEWCOMER] = 0, -1
    if rules.score == PACKED:
        _refresh_calm(fleet, story, clock)
    if changed or rules.reserves:
        run_pass(fleet, clock[NOW], hours, quota, rules)
    else:
        run_arrival_pass(fleet, newcomer, clock[NOW], hours, quota, rules)
    read_log(fleet, story, agenda, clock[NOW], rules)
    _remember_evictions(fleet, story, clock[NOW])


@inner
def _remember_evictions(fleet: Fleet, story: ReplayRecord, now_s: float) -> None:
    most = len(story.evicted_s)
    for place in range(fleet.totals[layout.NUM_LEFT]):
        number = story.ticks[NUM_EVICTIONS]
        story.evicted_s[number % most] = now_s
        story.evicted_node[number % most] = fleet.left_nodes[place]
        story.ticks[NUM_EVICTIONS] = number + 1
    story.ticks[FIRST_EVICTION] = max(story.ticks[FIRST_EVICTION], story.ticks[NUM_EVICTIONS] - most)


@inner
def _refresh_calm(fleet: Fleet, story: ReplayRecord, clock: Floats) -> None:
    """Count the evictions of each node in the hour and the day before the last tick."""
    tick_s = np.floor(clock[NOW] / TICK_S) * TICK_S
    if tick_s <= clock[CALM_AT]:
        return
    clock[CALM_AT] = tick_s
    if story.ticks[FIRST_EVICTION] == story.ticks[NUM_EVICTIONS]:
        return
    last_hour, last_day = np.zeros(len(fleet.nodes), np.int64), np.zeros(len(fleet.nodes), np.int64)
    for number in range(story.ticks[FIRST_EVICTION], story.ticks[NUM_EVICTIONS]):
        place = number % len(story.evicted_s)
        age_s = tick_s - story.evicted_s[place]
        if age_s >= 86_400.0:
            story.ticks[FIRST_EVICTION] = number + 1
        elif age_s >= 0.0:
            last_day[story.evicted_node[place]] += 1
            last_hour[story.evicted_node[place]] += age_s < 3600.0
    update_calmness(fleet, last_hour, last_day)
