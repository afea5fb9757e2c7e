"""Measure, decide, plan: from the stamps of messages to a schedule that is right for links nobody told about."""

from __future__ import annotations

import numpy as np
import pytest

from takeup.training.pipelines.planners.adaptation import (
    MessageStamps,
    SwitchRule,
    SwitchState,
    decide_switch,
    estimate_link,
)
from takeup.training.pipelines.planners.adaptra import Adaptra
from takeup.training.pipelines.planners.baselines import ZeroBubble
from takeup.training.pipelines.profile import Link, Profile
from takeup.training.pipelines.schedule import OpKind, Schedule, Timeline
from takeup.training.pipelines.timing.evaluation import timeline_of
from training.pipeline_profiles import slow

AHEAD_S = 1234.5  # by how much the clock of every rank is ahead of the one before


def messages(timeline: Timeline, profile: Profile, link: int, forward: bool) -> MessageStamps:
    """What sender and receiver of one direction note, each by its own clock."""
    stage, kind = (link, OpKind.FORWARD) if forward else (link + 1, OpKind.INPUT_GRADIENT)
    handed_s = np.array([span.end_s for span in timeline.spans() if span.op.stage == stage and span.op.kind == kind])
    free_s, usable_s = 0.0, []
    for moment_s in handed_s:
        free_s = max(free_s, moment_s) + profile.links[link].service_s
        usable_s.append(free_s + profile.links[link].latency_s)
    here_s, there_s = (link * AHEAD_S, (link + 1) * AHEAD_S) if forward else ((link + 1) * AHEAD_S, link * AHEAD_S)
    return MessageStamps(handed_s + here_s, np.array(usable_s) + there_s)


def measured(schedule: Schedule, truth: Profile) -> Profile:
    """The profile that ranks would find in one iteration."""
    timeline = timeline_of(schedule, truth)
    links = {
        link: estimate_link(*(messages(timeline, truth, link, forward) for forward in (True, False))).link
        for link in range(len(truth.links))
    }
    return truth.with_links(links)


@pytest.mark.parametrize(
    "links",
    [
        {2: Link(0.020)},
        {0: Link(0.050)},
        {1: Link(service_s=0.030)},
        {0: Link(0.015), 2: Link(service_s=0.026)},
        {1: Link(0.010, 0.028)},
    ],
)
def test_a_plan_from_measured_links_is_as_good_as_one_from_the_truth(links: dict[int, Link]) -> None:
    healthy = slow(4, 24, {})
    truth = healthy.with_links(links)
    running = ZeroBubble("zb_h2", 2).plan(healthy).schedule

    found = Adaptra().plan(measured(running, truth)).schedule

    best_s = Adaptra().plan(truth).iteration_s
    assert timeline_of(found, truth).iteration_s <= 1.02 * best_s


def test_a_link_that_becomes_slow_and_recovers_is_followed_by_two_changes() -> None:
    healthy, delayed = slow(4, 24, {}), slow(4, 24, {2: 40})
    plan = Adaptra().plan(healthy)
    running, situation = plan.schedule, SwitchState(1, plan.iteration_s)
    changes, times_s = [], []
    for iteration in range(80):
        truth = delayed if 10 <= iteration < 40 else healthy
        times_s.append(timeline_of(running, truth).iteration_s)
        profile = measured(running, truth)
        candidate = Adaptra().plan(profile)
        current_s = timeline_of(running, profile).iteration_s
        decision = decide_switch(SwitchRule(least_gain_share=0.001), situation, current_s, candidate.iteration_s)
        situation = decision.after
        if decision.switch:
            running = candidate.schedule
            changes.append((iteration, situation.version))

    assert changes[0] == (10, 2)
    assert len(changes) <= 2
    assert all(time_s <= 1.06 * plan.iteration_s for time_s in times_s[11:])


def test_a_healthy_job_is_left_alone() -> None:
    healthy = slow(4, 24, {})
    plan = Adaptra().plan(healthy)

    candidate = Adaptra().plan(measured(plan.schedule, healthy))
    decision = decide_switch(SwitchRule(), SwitchState(1, plan.iteration_s), plan.iteration_s, candidate.iteration_s)

    assert not decision.switch
