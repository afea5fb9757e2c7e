"""The restart decision of FALCON: when a restart, or another costly remedy, pays off, and which ranks it should swap.

`RestartRule.is_due` decides. `plan_escalation` finds the plan with the least expected loss, given how long slowdowns
last; `best_rank_swap` predicts which exchange of two ranks takes traffic off a slow link.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from takeup.core.arrays import Floats
from takeup.errors import BadInput
from takeup.training.stragglers.contract import CallLog, Operation, Pair, SlowdownEvent

# When to restart ------------------------------------------------------------------------------------------------------

Quantiles = tuple[tuple[float, float], ...]  # share of events, minutes
LINK_MINUTES: Quantiles = (  # durations of slow links, read off Figure 1 of GREYHOUND (USENIX ATC 2025)
    *((0.0, 0.2), (0.13, 0.4), (0.22, 2.0), (0.33, 5.0), (0.42, 10.0), (0.52, 20.0)),
    *((0.65, 30.0), (0.80, 60.0), (0.88, 100.0), (1.0, 300.0)),
)
OWN_WEIGHT = 5  # weight of an event of this job, in published events


def wait_before_restart_s(loss_share: float, cost_s: float, durations_s: Sequence[float]) -> float:
    """How long an event must last before a restart pays off, by past durations; this job's weigh more."""
    seen_s = (each for each in durations_s if each > 0 for _ in range(OWN_WEIGHT))
    law = DurationDistribution((*_usual_durations_s(), *seen_s))
    steps = plan_escalation((Remedy("nothing", 0.0, min(1.0, loss_share)), Remedy("restart", cost_s, 0.0)), law).steps
    return steps[1][0] if len(steps) > 1 else math.inf


def _usual_durations_s() -> list[float]:
    """Published durations of slow links: quantiles of their distribution."""
    shares, minutes = np.array(LINK_MINUTES).T
    return [float(each) for each in 60 * np.exp(np.interp(np.linspace(0.05, 0.95, 10), shares, np.log(minutes)))]


@dataclass(slots=True)
class RestartRule:
    """The restarts of one job.

    `after_s` is the lost time after which to restart, or `cost_s` the estimated cost of a restart: then `wait` returns
    how long an event must have lasted. With neither there are no restarts. The measured duration of a restart is its
    cost from then on. `order[n]` is the rank of the process to which the launcher gives rank n.
    """

    after_s: float | None = None
    cost_s: float | None = None
    wait: Callable[[float, float, Sequence[float]], float] = wait_before_restart_s
    durations_s: list[float] = field(default_factory=list)
    order: tuple[int, ...] = ()
    _requested_s: float | None = None

    def is_due(self, lasted_s: float, lost_s: float) -> bool:
        """Whether an event with this duration and lost time justifies a restart."""
        if self.is_under_way or lasted_s <= 0:
            return False
        if self.after_s is not None:
            return lost_s >= self.after_s
        if self.cost_s is None:
            return False
        return lasted_s >= self.wait(lost_s / lasted_s, self.cost_s, self.durations_s)

    @property
    def is_under_way(self) -> bool:
        """Whether a requested restart has not completed yet."""
        return self._requested_s is not None

    def requested(self, now_s: float) -> None:
        self._requested_s = now_s

    def completed(self, now_s: float) -> float | None:
        """Record that ranks have restarted; return the restart time in seconds if it was requested, else None."""
        if self._requested_s is None:
            return None
        took_s, self._requested_s = now_s - self._requested_s, None
        self.cost_s = took_s if self.cost_s is not None else None
        return took_s

    def swapped(self, order: Sequence[int]) -> tuple[int, ...]:
        """The process that now has rank n becomes rank order[n]; returns the order by the ranks of the launcher."""
        before = self.order or tuple(range(len(order)))
        self.order = tuple(order[rank] for rank in before)
        return self.order


# When a costlier remedy pays off: the plan with the least expected loss, given how long such events last --------------
#
# An event costs a share of every second while it lasts. A remedy has a one-time cost and lowers that share. The
# published rule applies a remedy as soon as the loss so far equals its cost (ski rental); it needs no prior knowledge,
# and costs up to twice the optimum. But durations are not unknown: `DurationDistribution` keeps the observed ones. From
# it `plan_escalation` derives, by backward induction (dynamic programming), when to apply what.


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


@dataclass(frozen=True, slots=True)
class EscalationPlan:
    """Remedies to apply, and how long after the event began; in order. An event that is over needs nothing more."""

    steps: tuple[tuple[float, Remedy], ...]


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
        best = current + int(np.argmin(_costs(remedies, ahead[moment], current)))
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


# Which two ranks should exchange their roles so that a slow link carries less: predicted from current traffic ---------
#
# A process that takes the rank of another takes over its neighbours. The traffic of an iteration between any two ranks
# is known from its calls: messages directly, collective calls around the ring of their group. The cost of a slow link
# is proportional to its traffic, so the exchange is chosen that minimizes it, at best to zero. The process groups of
# the job have to be created again with the new ranks; hence this requires a restart.


@dataclass(frozen=True, slots=True)
class PredictedRankSwap:
    """Two ranks that exchange their roles, and the predicted iteration time after that."""

    ranks: Pair
    predicted_s: float

    def order(self, num_ranks: int) -> tuple[int, ...]:
        one, other = self.ranks
        return tuple({one: other, other: one}.get(rank, rank) for rank in range(num_ranks))


def traffic_of(logs: Sequence[CallLog]) -> dict[Pair, int]:
    """By pair of ranks: the bytes that pass between them in these calls."""
    sent: Counter[Pair] = Counter()
    for log in logs:
        for operation, peer, group, size_bytes in log.calls[["operation", "peer", "group", "size_bytes"]].tolist():
            if operation == Operation.SEND:
                sent[_pair(log.rank, peer)] += size_bytes
            elif peer < 0 and (after := _next_in_ring(log.groups[group], log.rank)) is not None:
                sent[_pair(log.rank, after)] += size_bytes
    return dict(sent)


def best_rank_swap(
    event: SlowdownEvent, traffic: Mapping[Pair, int], num_ranks: int, least_saved_share: float
) -> PredictedRankSwap | None:
    """The exchange that saves most, if it saves this share of an iteration; None if the slow link is not known."""
    links = [suspect.ranks for suspect in event.suspects if suspect.kind == "link" and len(suspect.ranks) == 2]
    carried = traffic.get(_pair(*links[0]), 0) if links else 0
    if not carried:
        return None
    lost_s = event.after_s - event.before_s

    def predicted_s(pair: Pair) -> float:
        now = {pair[0]: pair[1], pair[1]: pair[0]}
        ends = [now.get(rank, rank) for rank in links[0]]
        return event.before_s + lost_s * min(1.0, traffic.get(_pair(*ends), 0) / carried)

    best = min(combinations(range(num_ranks), 2), key=predicted_s)
    found = PredictedRankSwap(best, predicted_s(best))
    return found if event.after_s - found.predicted_s >= least_saved_share * event.after_s else None


def _pair(one: int, other: int) -> Pair:
    return min(one, other), max(one, other)


def _next_in_ring(members: Sequence[int], rank: int) -> int | None:
    """The rank to which a rank sends in the ring of its group; None in a group of one."""
    if rank not in members or len(members) < 2:
        return None
    return members[(members.index(rank) + 1) % len(members)]
