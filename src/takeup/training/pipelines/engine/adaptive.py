"""A drop-in for PyTorch's pipeline schedules that replans when links become slow."""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch
import torch.distributed as dist

from takeup.core.arrays import Ints
from takeup.errors import BadInput, TakeupError
from takeup.training.pipelines.contract import Planner
from takeup.training.pipelines.engine.adapter import PipelineRuntime, ranks_of, register_by_name
from takeup.training.pipelines.engine.messages import first_words, private_group
from takeup.training.pipelines.engine.stopwatch import NUM_TIMES, RankStopwatch, record_event
from takeup.training.pipelines.planners import adaptation, find_policy
from takeup.training.pipelines.profile import Link, Profile, Stage
from takeup.training.pipelines.schedule import PipelinePlan, Schedule
from takeup.training.pipelines.timing.evaluation import timeline_of
from takeup.training.stragglers.watch.gloo_shutdown import delay_exit_until_idle
from takeup.training.stragglers.watch.ring import HeaderWord, RingBuffer

NANO = 1e-9
NUM_REMEMBERED = 4
FINE, USELESS = -1, -2  # status from rank 0; else the number of a rank with another version
LOG = logging.getLogger("takeup.training")

# How it works. Every `every` iterations, one is measured, the ranks agree on one profile, each plans for it, and if the
# predicted gain is large enough, all switch before the next iteration. Gradients are the same under every schedule.
# Slow links get delegates. All waits have a timeout, so a rank that stops responding ends the job instead of hanging
# it. A watcher of the job can request replanning immediately; then the next few iterations are measured.

# All ranks agree on one profile, as whole nanoseconds, so that each computes the same plan from it --------------------
#
# Rank 0 gathers the measurements of all ranks, computes a profile and broadcasts it. Link delays are estimated from
# the messages of training itself: when the sender handed one over, when the receiver could use it. Before ranks
# switch, they compare their proposals, and they switch only if all proposals are equal.


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
        both = torch.tensor([number, -number])
        with _communication("to switch to another schedule"):
            dist.all_reduce(both, dist.ReduceOp.MAX, group=self._group)
        return bool(both[0] == -both[1])

    def least(self, number: int) -> int:
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
        adaptation.estimate_link(
            adaptation.MessageStamps(handed[i, 0], usable[i + 1, 0]),
            adaptation.MessageStamps(handed[i + 1, 1], usable[i, 1]),
        ).link
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
    after: adaptation.SwitchState
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

    def __init__(self, start: Schedule, planner: Planner, blank: Profile, rule: adaptation.SwitchRule) -> None:
        self.schedule = start
        self.profile = blank
        self.slow: frozenset[int] = frozenset()
        self.changes: list[ScheduleChange] = []
        self._planner = planner
        self._rule = rule
        self._now = adaptation.SwitchState(0, 0.0)  # no expected time for a schedule planned without measurements

    @property
    def version(self) -> int:
        return int(self._now.version)

    def adopt(self, schedule: Schedule) -> None:
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
            decision = adaptation.decide_switch(self._rule, self._now, current_s, candidate.iteration_s)
            slow = adaptation.slow_links(self._rule, profile, self.slow)
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


# Requests of a watcher process to an adaptive pipeline: measure now, and replan the schedule --------------------------
#
# All ranks must do so in the same iteration, and a word in shared memory reaches them at different times. So before
# every iteration they agree on the newest request that all have seen. Without a watcher nothing is exchanged.

FOLDER = "TAKEUP_WATCH_FOLDER"


class ReplanRequests:
    """Requests to one rank; `least` returns the minimum of the numbers passed by all ranks of the pipeline."""

    def __init__(self, least: Callable[[int], int]) -> None:
        self._least = least
        self._is_watched = bool(os.environ.get(FOLDER))
        self._followed = 0

    def is_new(self) -> bool:
        """Whether there is an unhandled request that all ranks have seen; a collective, call it on all ranks."""
        if not self._is_watched:
            return False
        ring = _ring()
        number = self._least(0 if ring is None else ring.words[HeaderWord.ADAPT])
        is_new = number > self._followed
        self._followed = max(number, self._followed)
        return is_new

    def tell(self, num_changes: int) -> None:
        """Report that the last request was handled, and the number of schedule changes so far."""
        ring = _ring()
        if ring is not None:
            ring.words[HeaderWord.SCHEDULE] = num_changes
            ring.words[HeaderWord.ADAPTED] = self._followed


def _ring() -> Any:
    """The shared memory of this rank, if it is watched and has made a call."""
    from takeup.training.stragglers.watch.hook import current

    hook = current()
    return None if hook is None else hook.ring


RingBuffer.is_adaptive = True  # the controller of a watched job may request a new plan
LONGEST_S = 1e6
NUM_ASKED = 3  # iterations measured per request, so that most of the latest link delays are new


class AdaptiveSchedule:
    """One stage of a pipeline, on each rank of a Gloo or NCCL group; `step` is called as with the schedules of PyTorch.

    `planner` replans every `every` iterations, and `rule` sets the gain required for a switch. At most `max_live`
    micro-batches are in flight between their forward and their weight gradient. `split=False` is for modules whose
    backward cannot be split into I and W. Every wait for a message is limited to `timeout_s`. Other options go to
    PyTorch, such as `scale_grads`.
    """

    def __init__(  # noqa: PLR0913  a drop-in, with keyword options
        self,
        stage: Any,
        n_microbatches: int,
        loss_fn: Any,
        *,
        planner: str | Planner = "adaptra",
        every: int = 10,
        max_live: int | None = None,
        split: bool = True,
        timeout_s: float = 600.0,
        rule: adaptation.SwitchRule | None = None,
        **options: Any,
    ) -> None:
        _check(stage, every, timeout_s)
        delay_exit_until_idle()
        rule = rule or adaptation.SwitchRule()
        blank = _blank(stage.num_stages, n_microbatches, max_live, split)
        start = _find("zb_h1" if split else "one_f_one_b").plan(blank).schedule
        chosen = _find(planner)
        _check_plan(chosen.plan(blank), blank)  # also triggers JIT compilation, before other ranks wait for this one
        self._every = every
        self._watch = _watch_of(stage, n_microbatches)
        timeout = timedelta(seconds=timeout_s)
        self._runtime = PipelineRuntime(stage, n_microbatches, self._watch, timeout, loss_fn=loss_fn, **options)
        self._runtime.use(start)
        self._control = ScheduleControl(start, chosen, blank, rule)
        links = SmoothedLinks(partial(adaptation.link_delay_s, rule))
        self._exchange = ProfileExchange(private_group(ranks_of(stage), timeout), links)
        self._requests = ReplanRequests(self._exchange.least)
        self._asked = range(0)  # iterations after which ranks synchronize because of a request
        self.num_steps = 0
        self.pauses_s: list[float] = []
        """How long this rank planned, compared and switched, each time that ranks agreed."""
        self.swaps_s: list[float] = []
        """How long it took to make another schedule the one that is followed."""

    @property
    def schedule(self) -> Schedule:
        return self._control.schedule

    @property
    def version(self) -> int:
        """Number of schedule changes so far; the same on all ranks."""
        return self._control.version

    @property
    def profile(self) -> Profile:
        """The last agreed profile; initially all operations take 1 ms."""
        return self._control.profile

    @property
    def changes(self) -> tuple[ScheduleChange, ...]:
        """Schedule changes made by the planner, with iteration and reason."""
        return tuple(self._control.changes)

    @property
    def delegated(self) -> frozenset[int]:
        """Links that use delegates in the next iteration."""
        return self._control.slow

    @property
    def failed(self) -> frozenset[int]:
        """Links of this rank whose connection broke; their messages are carried by delegates."""
        return self._runtime.failed

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Run one iteration, as `step` of PyTorch's schedules; if due, agree on a profile and replan."""
        if self._requests.is_new():
            first = self.num_steps + 1 + self._watch.lag
            self._asked = range(first, first + NUM_ASKED)
        self._watch.begin(measure=self._is_due(self.num_steps + 1 + self._watch.lag))
        output = self._runtime.step(*args, **kwargs)
        self.num_steps += 1
        if self._is_due(self.num_steps):
            self._adapt()
        if self.num_steps == self._asked.stop - 1:
            self._requests.tell(self.version)
        return output

    def use(self, schedule: Schedule) -> None:
        """Use this schedule from the next iteration on; call it on all ranks before the same iteration."""
        self._runtime.use(schedule)
        self._control.adopt(schedule)

    def _is_due(self, step: int) -> bool:
        """Whether ranks agree after this step; the first one includes connection setup, so it is skipped."""
        return step > 1 + self._watch.lag and (step % self._every == 0 or step in self._asked)

    def _adapt(self) -> None:
        shared = self._exchange.agree(self.version, self._watch.measured())
        if shared is None:
            return
        start = time.perf_counter()
        if self._control.consider(self.num_steps, shared, self._exchange.same):
            self._swap()
        self._runtime.delegate(self.delegated)
        self.pauses_s.append(time.perf_counter() - start)

    def _swap(self) -> None:
        start = time.perf_counter()
        self._runtime.use(self.schedule)
        self.swaps_s.append(time.perf_counter() - start)


def _watch_of(stage: Any, num_microbatches: int) -> RankStopwatch:
    """Host clock on the CPU; device events on an accelerator, where calls are asynchronous."""
    if stage.device.type == "cpu":
        return RankStopwatch(num_microbatches)
    return RankStopwatch(num_microbatches, record_event, lag=1)


def _find(planner: str | Planner) -> Planner:
    return find_policy(planner) if isinstance(planner, str) else planner


def _blank(num_stages: int, num_microbatches: int, max_live: int | None, split: bool) -> Profile:
    """Initial profile before any measurement; memory is in units of micro-batches."""
    stage = Stage(1e-3, 1e-3, 1e-3, activation_bytes=1, memory_bytes=max_live)
    links = Profile.uniform(num_stages, num_microbatches, 1e-3).links
    return Profile((stage,) * num_stages, links, num_microbatches, can_split=split)


def _check_plan(plan: PipelinePlan, blank: Profile) -> None:
    if plan.schedule.placement != blank.placement:
        raise BadInput(
            f"the planner {plan.planner!r} cuts stages into chunks; adaptive schedules need one that has a stage on "
            "every rank, such as 'adaptra'"
        )


def _check(stage: Any, every: int, timeout_s: float) -> None:
    if not 0 < timeout_s < LONGEST_S:
        raise BadInput(f"timeout_s is {timeout_s:g}; give seconds above 0 and below {LONGEST_S:g}")
    if every < 1:
        raise BadInput(f"every is {every}; give the number of iterations from one plan to the next, at least 1")
    if stage.device.type not in {"cpu", "cuda"}:
        raise BadInput(
            f"the stage is on {stage.device}, and operations are timed on the CPU and on CUDA only; use one of these, "
            "or plan ahead and load the schedule with `plan --csv`"
        )
    if stage.group_size != stage.num_stages:
        raise BadInput(
            f"found {stage.num_stages} stages on {stage.group_size} ranks; adaptive schedules need one on each rank"
        )
    if stage.stage_index != stage.group_rank:
        raise BadInput(f"stage {stage.stage_index} is on rank {stage.group_rank} of its group; place stages in order")


register_by_name(AdaptiveSchedule)
