"""When a costlier remedy pays off: the plan with the least expected loss, given how long such events last.

An event costs a share of every second while it lasts. A remedy has a one-time cost and lowers that share. The published
rule applies a remedy as soon as the loss so far equals its cost (ski rental); it needs no prior knowledge, and costs up
to twice the optimum. But durations are not unknown: `DurationDistribution` keeps the observed ones. From it
`plan_escalation` derives, by backward induction (dynamic programming), when to apply what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from takeup.core.arrays import Floats
from takeup.errors import BadInput


@dataclass(frozen=True, slots=True)
class Remedy:
    """A remedy: `cost_s` once, and `loss_share` of every second from then on."""

    name: str
    cost_s: float
    loss_share: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.cost_s) and self.cost_s >= 0):
            raise BadInput(f"remedy {self.name}: cost_s is {self.cost_s:g}; give seconds, zero or more")
        if not 0 <= self.loss_share <= 1:
            raise BadInput(f"remedy {self.name}: loss_share is {self.loss_share:g}; give a share from 0 to 1")


@dataclass(frozen=True, slots=True)
class DurationDistribution:
    """Empirical distribution of event durations: observed durations in increasing order, equally likely."""

    durations_s: tuple[float, ...]

    def __post_init__(self) -> None:
        values = np.array(self.durations_s)
        if not len(values) or not np.isfinite(values).all() or values.min() <= 0:
            raise BadInput("durations of events must be at least one number, all above zero")
        object.__setattr__(self, "durations_s", tuple(np.sort(values).tolist()))

    def with_seen(self, duration_s: float) -> DurationDistribution:
        """The law after one more event."""
        return DurationDistribution((*self.durations_s, duration_s))


@dataclass(frozen=True, slots=True)
class EscalationPlan:
    """Remedies to apply, and how long after the event began; in order. An event that is over needs nothing more."""

    steps: tuple[tuple[float, Remedy], ...]

    def due(self, elapsed_s: float) -> Remedy:
        """The remedy that should be in force this long after the begin of the event."""
        return [remedy for after_s, remedy in self.steps if after_s <= elapsed_s][-1]


def ski_rental(remedies: Sequence[Remedy], from_s: float = 0.0) -> EscalationPlan:
    """The published rule: go on to the next remedy when the loss since the beginning has reached its cost."""
    _check(remedies)
    steps, elapsed_s, lost_s = [(from_s, remedies[0])], from_s, 0.0
    for remedy in remedies[1:]:
        share = steps[-1][1].loss_share
        if share <= 0:
            break
        elapsed_s += max(0.0, remedy.cost_s - lost_s) / share
        lost_s = max(lost_s, remedy.cost_s)
        steps.append((elapsed_s, remedy))
    return EscalationPlan(tuple(steps))


def plan_escalation(remedies: Sequence[Remedy], law: DurationDistribution) -> EscalationPlan:
    """The plan of least expected loss. Remedies may be skipped; weaker ones are never returned to.

    Between two observed durations nothing is learnt, so decisions are made only at the beginning and whenever another
    of them has passed. An event that outlasts all of them is unlike any seen: from then on the published rule holds.
    """
    _check(remedies)
    times_s = np.array([0.0, *law.durations_s])
    ahead = _losses_ahead(remedies, times_s)
    current, steps = 0, [(0.0, remedies[0])]
    for moment in range(len(law.durations_s)):
        best = _best(remedies, ahead[moment], current)
        if best != current:
            current = best
            steps.append((float(times_s[moment]), remedies[best]))
    return EscalationPlan((*steps, *ski_rental(remedies[current:], float(times_s[-1])).steps[1:]))


def _check(remedies: Sequence[Remedy]) -> None:
    shares = [remedy.loss_share for remedy in remedies]
    if sorted(shares, reverse=True) != shares or not shares:
        raise BadInput("remedies must be given from the weakest to the strongest, the first being what happens anyway")


def _losses_ahead(remedies: Sequence[Remedy], times_s: Floats) -> Floats:
    """By time step and remedy in force: expected remaining loss of events that have lasted until then."""
    num_events = len(times_s) - 1
    ahead = np.zeros((num_events + 1, len(remedies)))
    shares = np.array([remedy.loss_share for remedy in remedies])
    for moment in range(num_events - 1, -1, -1):
        survive_share = (num_events - moment - 1) / (num_events - moment)
        costs = [_costs(remedies, ahead[moment + 1], current).min() for current in range(len(remedies))]
        ahead[moment] = shares * (times_s[moment + 1] - times_s[moment]) + survive_share * np.array(costs)
    return ahead


def _costs(remedies: Sequence[Remedy], ahead: Floats, current: int) -> Floats:
    """Loss from now on with the current remedy, and with every stronger one."""
    once_s = np.array([0.0, *(remedy.cost_s for remedy in remedies[current + 1 :])])
    costs_s: Floats = ahead[current:] + once_s
    return costs_s


def _best(remedies: Sequence[Remedy], ahead: Floats, current: int) -> int:
    """The remedy to be in force from now on; the current one if no other is better."""
    return current + int(np.argmin(_costs(remedies, ahead, current)))


def expected_loss_s(steps: EscalationPlan, law: DurationDistribution) -> float:
    """Expected loss of an event under a plan."""
    return float(np.mean([_loss_s(steps, duration_s) for duration_s in law.durations_s]))


def _loss_s(chosen: EscalationPlan, duration_s: float) -> float:
    ends_s = [*(after_s for after_s, _ in chosen.steps[1:]), np.inf]
    return sum(
        (remedy.cost_s if number else 0.0) + remedy.loss_share * (min(end_s, duration_s) - after_s)
        for number, ((after_s, remedy), end_s) in enumerate(zip(chosen.steps, ends_s, strict=True))
        if after_s < duration_s
    )
