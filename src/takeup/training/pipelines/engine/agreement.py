"""All ranks agree on one profile and compute the same schedule from it, each by itself."""

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple
from zlib import crc32

import numpy as np
import torch
import torch.distributed as dist

from takeup.core.arrays import Ints
from takeup.errors import TakeupError
from takeup.training.pipelines.contract import Planner
from takeup.training.pipelines.engine.receives import first_words
from takeup.training.pipelines.engine.stopwatch import NUM_TIMES
from takeup.training.pipelines.planners.link_estimate import MessageStamps, estimate_link
from takeup.training.pipelines.planners.trigger import SwitchRule, SwitchState, decide_switch, slow_links
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.schedule import PipelinePlan, Schedule
from takeup.training.pipelines.timing.evaluation import timeline_of

# All ranks agree on one profile, as whole nanoseconds, so that each computes the same plan from it --------------------
#
# Rank 0 gathers the measurements of all ranks, computes a profile and broadcasts it. Link delays are estimated from
# the messages of training itself: when the sender handed one over, when the receiver could use it. Before ranks
# switch, they compare their proposals, and they switch only if all proposals are equal.

NANO = 1e-9
NUM_REMEMBERED = 4
FINE, USELESS = -1, -2  # status from rank 0; else the number of a rank with another version
LOG = logging.getLogger("takeup.training")


class SmoothedLinks:
    """Smoothed links for planning: of the recent measurements, the one with the most typical delay."""

    def __init__(self, typical_s: Callable[[list[float]], float]) -> None:
        self._typical_s = typical_s
        self._recent: deque[list[Link]] = deque(maxlen=NUM_REMEMBERED)

    def after(self, measured: list[Link]) -> list[Link]:
        """Add these measurements and return the links to plan for."""
        self._recent.append(measured)
        return [self._nearest(recent) for recent in zip(*self._recent, strict=True)]

    def _nearest(self, recent: tuple[Link, ...]) -> Link:
        """The measurement nearest to the typical delay; latency and service time stay paired."""
        wanted_s = self._typical_s([link.delay_s for link in recent])
        return min(reversed(recent), key=lambda link: abs(link.delay_s - wanted_s))


class ProfileExchange:
    """Collectives among the ranks of a pipeline; all ranks must call each method together, within the timeout."""

    def __init__(self, group: dist.ProcessGroup, links: SmoothedLinks) -> None:
        self._group = group
        self._links = links
        self._num_ranks = dist.get_world_size(group)
        self._rank = dist.get_rank(group)

    def agree(self, version: int, measured: Ints) -> Ints | None:
        """Agree on F, I and W of every stage, then latency and service of every link; None if the estimate failed.

        If a rank follows another version of the schedule than the first, all ranks raise.
        """
        with _communication("to agree on a profile"):
            verdict, of_version, *shared = self._shared(np.array([version, *measured]))
        if verdict >= 0:
            raise TakeupError(
                f"rank {verdict} follows version {of_version} of the schedule and the first rank another; "
                "change schedules on all ranks before the same iteration"
            )
        return np.array(shared) if verdict == FINE else None

    def same(self, number: int) -> bool:
        """Whether all ranks pass the same number."""
        both = torch.tensor([number, -number])
        with _communication("to switch to another schedule"):
            dist.all_reduce(both, dist.ReduceOp.MAX, group=self._group)
        return bool(both[0] == -both[1])

    def least(self, number: int) -> int:
        """Minimum of the numbers that the ranks pass."""
        given = torch.tensor([number])
        with _communication("to hear what they are asked"):
            dist.all_reduce(given, dist.ReduceOp.MIN, group=self._group)
        return int(given.item())

    def _shared(self, row: Ints) -> list[int]:
        """Status, version and profile that rank 0 computes from the measurements of all ranks."""
        rows = self._gather(row)
        shared = np.zeros(2 + NUM_TIMES * self._num_ranks + 2 * (self._num_ranks - 1), np.int64)
        if rows is not None:
            found = self._judged(rows)
            shared[: len(found)] = found
        dist.broadcast(torch.from_numpy(shared), group=self._group, group_src=0)
        return [int(number) for number in shared]

    def _judged(self, rows: Ints) -> list[int]:
        odd = np.flatnonzero(rows[:, 0] != rows[0, 0])
        if odd.size:
            return [int(odd[0]), int(rows[odd[0], 0])]
        try:
            links = self._links.after(estimate_links(rows[:, 1:]))
        except TakeupError:
            LOG.exception("what ranks measured is no pipeline; the schedule stays as it is")
            return [USELESS]
        delays = [round(delay_s / NANO) for link in links for delay_s in (link.latency_s, link.service_s)]
        return [FINE, 0, *rows[:, 1 : 1 + NUM_TIMES].ravel(), *delays]

    def _gather(self, measured: Ints) -> Ints | None:
        message = torch.from_numpy(measured)
        rows = [torch.empty_like(message) for _ in range(self._num_ranks)] if self._rank == 0 else None
        dist.gather(message, rows, group=self._group, group_dst=0)
        return None if rows is None else np.stack([row.numpy() for row in rows])


@contextmanager
def _communication(why: str) -> Iterator[None]:
    """Convert a communication failure to an error that says what the ranks were doing."""
    try:
        yield
    except RuntimeError as error:
        raise TakeupError(
            f"ranks met {why}, and one did not answer in time or is gone; the schedule stays as it was; "
            f"look which rank failed, and start the job again ({first_words(error)})"
        ) from error


def estimate_links(rows: Ints) -> list[Link]:
    """Estimate the links between ranks from their measurements."""
    notes = rows[:, NUM_TIMES:].reshape(len(rows), 2, 2, -1) * NANO  # by rank: handed or usable, direction, micro-batch
    handed, usable = notes[:, 0], notes[:, 1]
    return [
        estimate_link(MessageStamps(handed[i, 0], usable[i + 1, 0]), MessageStamps(handed[i + 1, 1], usable[i, 1])).link
        for i in range(len(rows) - 1)
    ]


# From the shared profile to the schedule in use: a deterministic function that every rank computes by itself ----------


@dataclass(frozen=True, slots=True)
class ScheduleChange:
    """A schedule switch: after which iteration, to which version, why, and the predicted iteration time."""

    iteration: int
    version: int
    reason: str
    expected_s: float


class PlanProposal(NamedTuple):
    """What a rank proposes: the profile, the links that need delegates, and a new plan or None."""

    profile: Profile
    slow: frozenset[int]
    after: SwitchState
    plan: PipelinePlan | None = None
    reason: str = ""

    @property
    def number(self) -> int:
        """Checksum of the proposal, above zero, to compare it across ranks."""
        orders = () if self.plan is None else [order.tobytes() for order in self.plan.schedule.codes]
        return 1 + crc32(b"".join(orders), crc32(bytes(sorted(self.slow)), self.after.version))


class ScheduleControl:
    """The schedule in use, its version, and whether a new one is worth a change.

    It contains no policy: planner and rule are arguments, and the decision functions are loaded from the policies.
    """

    def __init__(self, start: Schedule, planner: Planner, blank: Profile, rule: SwitchRule) -> None:
        self.schedule = start
        self.profile = blank
        self.slow: frozenset[int] = frozenset()
        self.changes: list[ScheduleChange] = []
        self._planner = planner
        self._rule = rule
        self._now = SwitchState(0, 0.0)  # no expected time for a schedule planned without measurements

    @property
    def version(self) -> int:
        """Number of schedule changes so far."""
        return int(self._now.version)

    def adopt(self, schedule: Schedule) -> None:
        """Switch to a schedule chosen by the caller."""
        self._now = replace(self._now, version=self.version + 1, expected_s=0.0, num_better=0)
        self.schedule = schedule

    def consider(self, iteration: int, shared: Ints, same: Callable[[int], bool] = bool) -> bool:
        """Replan from the measurements of all ranks; True if the schedule changed.

        `same` tells whether all ranks pass the same number; if their proposals differ, all keep the current schedule.
        """
        proposal = self._propose(shared)
        if not same(proposal.number):
            LOG.warning("after iteration %d ranks planned differently; all keep the schedule they have", iteration)
            return False
        self.profile, self.slow, self._now = proposal.profile, proposal.slow, proposal.after
        if proposal.plan is not None:
            self.schedule = proposal.plan.schedule
            self.changes.append(ScheduleChange(iteration, self.version, proposal.reason, proposal.plan.iteration_s))
        return proposal.plan is not None

    def _propose(self, shared: Ints) -> PlanProposal:
        """Proposal of this rank; no change if planning fails."""
        try:
            profile = profile_of(shared, self.profile)
            candidate = self._planner.plan(profile)
            current_s = timeline_of(self.schedule, profile).iteration_s
            decision = decide_switch(self._rule, self._now, current_s, candidate.iteration_s)
            slow = slow_links(self._rule, profile, self.slow)
        except Exception:
            LOG.exception("planning failed; the schedule stays as it is")
            return PlanProposal(self.profile, self.slow, self._now)
        plan = candidate if decision.switch else None
        return PlanProposal(profile, slow, decision.after, plan, decision.reason)


def profile_of(shared: Ints, blank: Profile) -> Profile:
    """Profile with the agreed times (`shared` is in nanoseconds); memory and everything else are taken from `blank`."""
    num_stages = blank.num_stages
    times_s = shared[: 3 * num_stages].reshape(num_stages, 3) * NANO
    delays_s = shared[3 * num_stages :].reshape(num_stages - 1, 2) * NANO
    stages = [
        Stage(forward_s, backward_s, weight_s, stage.activation_bytes, stage.memory_bytes)
        for stage, (forward_s, backward_s, weight_s) in zip(blank.stages, times_s.tolist(), strict=True)
    ]
    links = [Link(latency_s, service_s) for latency_s, service_s in delays_s.tolist()]
    return replace(blank, stages=tuple(stages), links=tuple(links))
