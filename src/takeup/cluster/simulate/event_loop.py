"""Numba kernel: event loop of one pool: arrivals, ends, kept periods, evictions after notice, and ticks.

All events of one moment are processed first; then the scheduler decides once. Between events nothing changes, so a
quiet week costs nothing. Ticks occur every five minutes, and only while jobs wait, or also while jobs run under leases:
rules with a duration act then.
"""

import numpy as np

from takeup.cluster.scheduling.counters import enqueue, evict, release_nodes
from takeup.cluster.scheduling.layout import NUM_LEFT, NUM_RUNNING, NUM_WAITING_HIGH, NUM_WAITING_SPOT, Fleet
from takeup.cluster.scheduling.placement import update_calmness
from takeup.cluster.scheduling.rules import PACKED, SchedulerRules
from takeup.cluster.scheduling.scheduling_pass import run_arrival_pass, run_pass
from takeup.cluster.simulate.records import (
    CHANGED,
    FINISH,
    FIRST_EVICTION,
    LEAVE,
    NEWCOMER,
    NEXT_JOB,
    NUM_BROKEN,
    NUM_EVICTIONS,
    NUM_KEPT,
    PERIOD,
    USEFUL,
    EventQueue,
    ReplayRecord,
    account,
    count_period,
    hour_of,
    next_s,
    pop,
    push,
    push_again,
    read_log,
    save,
)
from takeup.core.arrays import Floats
from takeup.core.compiled import inner, kernel

TICK_S = 300.0
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
        if agenda.counts[0] > len(agenda.entries) - 2 * len(fleet.jobs):
            _drop_stale(fleet, story, agenda)
        if story.ticks[CHANGED] or story.ticks[NEWCOMER] >= 0:
            _decide(fleet, story, agenda, clock, hours, quota, rules)
            num_turns += 1
        when_s = min(_arrival_s(fleet, story), next_s(agenda), _tick_s(fleet, clock[NOW], rules))
        if when_s >= until_s or when_s == np.inf:
            if until_s < np.inf:
                account(fleet, story, clock[NOW], until_s)
                clock[NOW] = until_s
            return num_turns
        account(fleet, story, clock[NOW], when_s)
        clock[NOW] = when_s
        story.ticks[CHANGED] = when_s % TICK_S == 0.0
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
    waiting = fleet.totals[NUM_WAITING_HIGH] + fleet.totals[NUM_WAITING_SPOT]
    if waiting > 0 and rules.lease_s == 0.0:
        return float((np.floor(now_s / TICK_S) + 1.0) * TICK_S)
    if waiting + fleet.totals[NUM_RUNNING] > 0 and rules.lease_s > 0.0:
        return float((np.floor(now_s / TICK_S) + 1.0) * TICK_S)
    return np.inf


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
        _keep_period(fleet, story, job, now_s)
        release_nodes(fleet, job)
        story.end_s[job] = now_s
        story.done_s[job] = story.duration_s[job]
        _change_demand(fleet, story, job, now_s, -1.0)
        story.ticks[CHANGED] = 1
    elif what == PERIOD:
        _keep_period(fleet, story, job, now_s)
        push(agenda, now_s + rules.period_s, PERIOD, job, story.run[job])
    elif what == LEAVE:
        save(story, job, now_s - it.start_s)
        count_period(story, it.grade, now_s, NUM_BROKEN)
        fleet.totals[NUM_LEFT] = 0
        evict(fleet, job, it.leaving_for, now_s, 0.0, rules)
        _remember_evictions(fleet, story, now_s)
        story.ticks[CHANGED] = 1


@inner
def _keep_period(fleet: Fleet, story: ReplayRecord, job: int, now_s: float) -> None:
    it = fleet.jobs[job]
    if it.kind == 1:
        useful_gpu_s = (now_s - story.period_from_s[job]) * it.milli * it.workers / 1000.0
        story.gpu_s[hour_of(story, now_s), it.grade, USEFUL] += useful_gpu_s
        count_period(story, it.grade, now_s, NUM_KEPT)
        story.period_from_s[job] = now_s


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
    if changed:
        run_pass(fleet, clock[NOW], hours, quota, rules)
    else:
        run_arrival_pass(fleet, newcomer, clock[NOW], hours, quota, rules)
    read_log(fleet, story, agenda, clock[NOW], rules)
    _remember_evictions(fleet, story, clock[NOW])


@inner
def _remember_evictions(fleet: Fleet, story: ReplayRecord, now_s: float) -> None:
    most = len(story.evicted_s)
    for place in range(fleet.totals[NUM_LEFT]):
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
