"""The step engine: requests join and leave at every step boundary, and compatible ones share one network call.

How it works (continuous batching at step granularity). At each step boundary the loop

    1. admits submitted requests, and removes cancelled and late ones;
    2. queries the add-ons which requests are ready (one that waits for a LoRA stalls, the others do not), and pauses
       those of a tenant with far more rows than another;
    3. groups requests into calls: same shapes, same weights, at any step;
    4. calls the network once for each group, then makes the scheduler step of each request.

A failure ends only its own request: if a shared call fails, its requests are called one by one. Text encoding and image
decoding are `prepare` and `decode` of the family: they run in the threads of the callers.
"""

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from takeup.serving.contract import Group
from takeup.serving.diffusion.contract import AddOn, BatchRows, DenoisingRun, Family, RowGatherer
from takeup.serving.diffusion.engine.families import family_of
from takeup.serving.diffusion.execution.executors import EagerExecutor, Executor
from takeup.serving.diffusion.policies import Grouping, TenantTurns, one_by_one
from takeup.serving.model import Cancelled, Candidate, Expired, Request, State

# The caller's handle of a request: progress, cancellation, and the final latents --------------------------------------

OnStep = Callable[[int, int], None]
"""Hears how many steps are done, and of how many."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One request in the engine. Can be queried and cancelled from any thread."""

    number: int
    run: DenoisingRun
    on_step: OnStep | None = None
    state: State = "waiting"
    finished: Future[DenoisingRun] = field(default_factory=Future)
    _withdrawn: bool = False

    @property
    def is_over(self) -> bool:
        return self.finished.done()

    def cancel(self) -> None:
        """Remove the request at the next step boundary; no effect once it has ended."""
        self._withdrawn = True

    def result(self, timeout_s: float | None = None) -> DenoisingRun:
        """The finished run; raises the error that ended it otherwise."""
        return self.finished.result(timeout_s)

    def leaves(self, now_s: float) -> bool:
        """End the request if it was cancelled or its deadline has passed. Returns whether it is over."""
        deadline_s = self.run.request.deadline_s
        if self._withdrawn:
            self.end("cancelled", Cancelled(f"the request was cancelled after {self._progress()}"))
        elif deadline_s is not None and now_s > deadline_s:
            self.end(
                "expired", Expired(f"the deadline passed after {self._progress()}; allow more time or fewer steps")
            )
        return self.is_over

    def end(self, state: State, error: BaseException | None = None) -> None:
        """Set the final state and resolve the future."""
        self.state = state
        if error is None:
            self.finished.set_result(self.run)
        else:
            self.finished.set_exception(error)

    def _progress(self) -> str:
        return f"{self.run.step} of {len(self.run.timesteps)} steps"


IDLE_SLEEP_S = 0.001


class StepEngine:
    """Serves one pipeline. Call `submit` from any thread; `advance` or `run` from one.

    `deterministic` calls the network for one request at a time: then images do not depend on concurrent requests, bit
    for bit. Otherwise `max_rows` rows may share a call, and images differ by rounding. `group`, if given, replaces this
    grouping; `compute` executes the network calls; `family` overrides that of the pipeline.
    """

    def __init__(
        self,
        pipeline: Any,
        *,
        max_rows: int = 16,
        deterministic: bool = False,
        add_ons: Sequence[AddOn] = (),
        clock: Callable[[], float] = time.monotonic,
        group: Group | None = None,
        compute: Executor | None = None,
        family: Family | None = None,
    ) -> None:
        self.family: Family = family or family_of(pipeline)
        self.add_ons = (*add_ons, *self.family.add_ons)
        self.compute: Executor = compute or EagerExecutor()
        self.compute.prepare(self.family)
        self.num_calls = 0
        self._turns = TenantTurns()
        self.elsewhere: Callable[[], Mapping[str, int]] = dict
        self._group: Group = group or (one_by_one if deterministic else Grouping(max_rows))
        self._gather = RowGatherer()
        self._clock = clock
        self._numbers = itertools.count()
        self._inbox: deque[Ticket] = deque()
        self._running: dict[int, Ticket] = {}
        self._arrived = threading.Event()

    def submit(self, request: Request, on_step: OnStep | None = None) -> Ticket:
        """Prepare the request in this thread and submit it to the loop; it joins at the next step boundary."""
        return self.enter(self.family.prepare(request), on_step)

    def enter(self, run: DenoisingRun, on_step: OnStep | None = None) -> Ticket:
        """Submit a prepared request to the loop."""
        ticket = Ticket(next(self._numbers), run, on_step)
        if run.is_done:  # a pipeline without a denoiser
            ticket.end("done")
            return ticket
        self._inbox.append(ticket)
        self._arrived.set()
        return ticket

    @property
    def num_running(self) -> int:
        """The number of unfinished requests, including waiting ones."""
        return len(self._running) + len(self._inbox)

    def advance(self) -> int:
        """One step of every ready request. Returns the number of network calls."""
        self._arrived.clear()
        self._admit()
        now_s = self._clock()
        for ticket in list(self._running.values()):
            if ticket.leaves(now_s):
                self._release(ticket)
        ready = [ticket for ticket in list(self._running.values()) if self._is_ready(ticket)]
        turns = self._turns([(ticket.run.request.tenant, ticket.run.num_rows) for ticket in ready], self.elsewhere())
        ready = [ready[index] for index in turns]
        self._plan([ticket.run for ticket in ready])
        calls = self._group([self._as_candidate(ticket) for ticket in ready])
        for call in calls:
            self._call(tuple(self._running[number] for number in call))
        if calls:
            self.compute.pace()
        return len(calls)

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Advance until no request is left or, if given, until `until()` is true; polls while idle."""
        while self.num_running if until is None else not until():
            if not self.advance():
                if not self.num_running:
                    self.compute.idle()
                self._arrived.wait(IDLE_SLEEP_S)

    def image(self, ticket: Ticket) -> torch.Tensor:
        """Decode the image of a finished request in the caller's thread."""
        return self.family.decode(ticket.result())

    def _admit(self) -> None:
        while self._inbox:
            ticket = self._inbox.popleft()
            self._running[ticket.number] = ticket
            ticket.state = "running"
            self._guarded(ticket, partial(self._tell, ticket.run))

    def _tell(self, run: DenoisingRun) -> None:
        for add_on in self._acting_on(run):
            add_on.joined(run)

    def _acting_on(self, *runs: DenoisingRun) -> list[AddOn]:
        """The add-ons that act on at least one of these requests."""
        return [one for one in self.add_ons if any(_acts_on(one, run) for run in runs)]

    def _plan(self, runs: list[DenoisingRun]) -> None:
        for add_on in self._acting_on(*runs):
            add_on.plan([run for run in runs if _acts_on(add_on, run)])

    def _is_ready(self, ticket: Ticket) -> bool:
        ready: bool | None = self._guarded(ticket, lambda: self._all_ready(ticket.run))
        return bool(ready)

    def _all_ready(self, run: DenoisingRun) -> bool:
        return all(add_on.is_ready(run) for add_on in self._acting_on(run))

    def _as_candidate(self, ticket: Ticket) -> Candidate:
        run = ticket.run
        deadline_s = math.inf if run.request.deadline_s is None else run.request.deadline_s
        return Candidate(ticket.number, self._bucket(run), run.num_rows, deadline_s, run.computed_share)

    def _bucket(self, run: DenoisingRun) -> Hashable:
        return (run.bucket(), *(add_on.bucket(run) if _acts_on(add_on, run) else None for add_on in self.add_ons))

    def _call(self, tickets: tuple[Ticket, ...]) -> None:
        try:
            rows = self._gather(tuple(ticket.run for ticket in tickets))
            predictions = torch.split(self._predict(rows), rows.sizes)
        except Exception as problem:  # any failure: the loop must go on for other requests
            self._sort_out(tickets, problem)
            return
        for ticket, prediction in zip(tickets, predictions, strict=True):
            self._guarded(ticket, partial(self._finish_step, ticket, prediction))

    def _sort_out(self, tickets: tuple[Ticket, ...], problem: Exception) -> None:
        """A shared call failed: call each request alone to find the faulty one."""
        if len(tickets) == 1:
            self._fail(tickets[0], problem)
            return
        for ticket in tickets:
            self._call((ticket,))

    def _predict(self, rows: BatchRows) -> torch.Tensor:
        with ExitStack() as stack:
            for add_on in self._acting_on(*rows.runs):
                stack.enter_context(add_on.around(rows))
            self.num_calls += 1
            return self.compute.predict(self.family, rows)

    @torch.no_grad()
    def _finish_step(self, ticket: Ticket, prediction: torch.Tensor) -> None:
        run = ticket.run
        guided = self.family.guide(run, prediction)
        if run.accepts is not None and not run.accepts(guided):
            return
        run.latents = run.scheduler.step(guided, run.timestep, run.latents, **run.step_options, return_dict=False)[0]
        run.step += 1
        if ticket.on_step is not None:
            ticket.on_step(run.step, len(run.timesteps))
        if run.is_done:
            self._release(ticket)  # before `end`, so that waiters see what add-ons stored in `left`
            ticket.end("done")

    def _guarded(self, ticket: Ticket, act: Callable[[], Any]) -> Any:
        """Run `act`; an exception fails only this request."""
        try:
            return act()
        except Exception as problem:
            self._fail(ticket, problem)
            return None

    def _fail(self, ticket: Ticket, problem: BaseException) -> None:
        if not ticket.is_over:
            ticket.end("failed", problem)
        self._release(ticket)

    def _release(self, ticket: Ticket) -> None:
        if self._running.pop(ticket.number, None) is not None:
            for add_on in self._acting_on(ticket.run):
                add_on.left(ticket.run)


def _acts_on(add_on: AddOn, run: DenoisingRun) -> bool:
    return add_on.slot is None or add_on.slot in run.extras
