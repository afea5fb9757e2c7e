"""When to switch the schedule of a running job: only if a gain is predicted, with hysteresis.

The predicted iteration time of the current schedule, under the links as measured, is compared with that of a new plan.
If links became worse, a gain of more than 3 % suffices. If they became better, the gain must last for 20 iterations,
because a link that is healthy for a moment may be slow again. Every switch has a new version, so that all ranks can
agree on the iteration in which they switch.

Messages of a slow link are sent through a separate path, so that compute does not wait behind its sends; the link
keeps it until the delay is half as long.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from takeup.errors import BadInput
from takeup.training.pipelines.profile import Profile


@dataclass(frozen=True, slots=True)
class SwitchRule:
    """Gain required for a switch, for how many iterations if links recover, and the delay percentile to plan for.

    A link is slow if its delay is more than `slow_share` of the shortest operation at either of its ends.
    """

    least_gain_share: float = 0.03
    patience: int = 20
    percent: float = 75.0
    slow_share: float = 0.25


@dataclass(frozen=True, slots=True)
class SwitchState:
    """The version in use, its expected time when adopted, and for how many iterations another was better."""

    version: int
    expected_s: float
    num_better: int = 0


@dataclass(frozen=True, slots=True)
class SwitchDecision:
    """Whether to switch at the next iteration boundary, why, and the situation after that."""

    switch: bool
    reason: str
    after: SwitchState


def decide_switch(rule: SwitchRule, now: SwitchState, current_s: float, candidate_s: float) -> SwitchDecision:
    """Compare the predicted times of the current schedule and a new one; call once per iteration."""
    for name, value in (("current_s", current_s), ("candidate_s", candidate_s)):
        if not (np.isfinite(value) and value > 0):
            raise BadInput(f"{name} is {value:g}; give the predicted time of an iteration, above zero")
    gain_share = 1 - candidate_s / current_s
    if gain_share <= rule.least_gain_share:
        return SwitchDecision(False, f"a gain of {gain_share:.1%} is too small", replace(now, num_better=0))
    if current_s > now.expected_s * (1 + rule.least_gain_share):
        return _switch(now, candidate_s, f"links became slower: {gain_share:.1%} less with a new schedule")
    if now.num_better + 1 >= rule.patience:
        return _switch(now, candidate_s, f"{gain_share:.1%} less for {rule.patience} iterations")
    waiting = replace(now, num_better=now.num_better + 1)
    return SwitchDecision(
        False, f"{gain_share:.1%} less, for {waiting.num_better} of {rule.patience} iterations", waiting
    )


def _switch(now: SwitchState, candidate_s: float, reason: str) -> SwitchDecision:
    return SwitchDecision(True, reason, SwitchState(now.version + 1, candidate_s))


def link_delay_s(rule: SwitchRule, recent_s: Sequence[float]) -> float:
    """The delay to plan for: a percentile of recent delays, not the last one."""
    if not len(recent_s):
        raise BadInput("no delay was measured; give at least one")
    return float(np.percentile(recent_s, rule.percent))


def slow_links(rule: SwitchRule, profile: Profile, before: frozenset[int]) -> frozenset[int]:
    """The slow links, with hysteresis: a link that was slow `before` has half the limit."""
    return frozenset(
        number
        for number, link in enumerate(profile.links)
        if link.delay_s > rule.slow_share * (0.5 if number in before else 1.0) * _shortest_s(profile, number)
    )


def _shortest_s(profile: Profile, number: int) -> float:
    """The shortest forward or backward at either end of a link."""
    return min(min(stage.forward_s, stage.backward_s) for stage in profile.stages[number : number + 2])
