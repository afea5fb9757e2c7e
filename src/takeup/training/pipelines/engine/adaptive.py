"""A drop-in for PyTorch's pipeline schedules that replans when links become slow.

How it works. Every `every` iterations, one is measured, the ranks agree on one profile, each plans for it, and if the
predicted gain is large enough, all switch before the next iteration. Gradients are the same under every schedule.
Slow links get delegates. All waits have a timeout, so a rank that stops responding ends the job instead of hanging it.
A watcher of the job can request replanning immediately; then the next few iterations are measured.
"""

import os
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

from takeup.errors import BadInput
from takeup.training.pipelines.contract import Planner
from takeup.training.pipelines.engine.adapter import PipelineRuntime, ranks_of
from takeup.training.pipelines.engine.agreement import ProfileExchange, ScheduleChange, ScheduleControl, SmoothedLinks
from takeup.training.pipelines.engine.delegate import private_group
from takeup.training.pipelines.engine.stopwatch import DeviceStopwatch, HostStopwatch, RankStopwatch
from takeup.training.pipelines.planners import find_policy
from takeup.training.pipelines.planners.trigger import SwitchRule, link_delay_s
from takeup.training.pipelines.profile import Profile, Stage
from takeup.training.pipelines.schedule import PipelinePlan, Schedule
from takeup.training.stragglers.watch.gloo_shutdown import delay_exit_until_idle
from takeup.training.stragglers.watch.ring import HeaderWord, RingBuffer

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


def _ring() -> RingBuffer | None:
    """The shared memory of this rank, if it is watched and has made a call."""
    from takeup.training.stragglers.watch.hook import current

    hook = current()
    return None if hook is None else hook.ring


LONGEST_S = 1e6
NUM_ASKED = 3  # iterations measured per request, so that most of the latest link delays are new


class AdaptiveSchedule:
    """One stage of a pipeline, on each rank of a Gloo or NCCL group; `step` is called as with the schedules of PyTorch.

    `planner` replans every `every` iterations, and `rule` sets the gain required for a switch. At most `max_live`
    micro-batches are in flight between their forward and their weight gradient. `split=False` is for modules whose
    backward cannot be split into I and W. Every wait for a message is limited to `timeout_s`. Other options go to
    PyTorch, such as `scale_grads`.
    """

    def __init__(  # noqa: PLR0913  a drop-in, with options of its own by name
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
        rule: SwitchRule | None = None,
        **options: Any,
    ) -> None:
        _check(stage, every, timeout_s)
        delay_exit_until_idle()
        rule = rule or SwitchRule()
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
        links = SmoothedLinks(partial(link_delay_s, rule))
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
        """Schedule of the next iteration."""
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
    return HostStopwatch(num_microbatches) if stage.device.type == "cpu" else DeviceStopwatch(num_microbatches)


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
