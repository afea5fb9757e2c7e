"""The loop that joins a policy and an engine: observe, decide, apply, every period.

A policy that fails changes nothing: its decisions are collected before the first one is applied. A decision that the
engine refuses or fails to apply does not stop the others. Either way the loop goes on and reports each
distinct problem once.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from typing import Generic, Literal, Protocol, TypeVar

from takeup.core.clock import Clock, Timer
from takeup.errors import BadInput, TakeupError

State = TypeVar("State")
State_co = TypeVar("State_co", covariant=True)
State_contra = TypeVar("State_contra", contravariant=True)
Decision = TypeVar("Decision")
Decision_co = TypeVar("Decision_co", covariant=True)
Decision_contra = TypeVar("Decision_contra", contravariant=True)

ApplyOutcome = Literal["applied", "refused", "failed", "dry run"]

MOST_REPORTS = 1000  # messages that never repeat must not fill the memory of a loop that runs for months

logger = logging.getLogger("takeup")


class ControlledEngine(Protocol[State_co, Decision_contra]):
    """A real or simulated system that reports its state and applies decisions."""

    def observe(self) -> State_co:
        """The current state."""

    def apply(self, decision: Decision_contra) -> None:
        """Apply one decision; raises a TakeupError to refuse it, without any change."""


class ControlPolicy(Protocol[State_contra, Decision_co]):
    """Maps a state to decisions."""

    def decide(self, state: State_contra) -> Iterable[Decision_co]:
        """The decisions for this state."""


@dataclass(slots=True)
class LoopCounters:
    """Counters of a control loop."""

    num_rounds: int = 0
    num_failed_rounds: int = 0
    num_decisions: int = 0
    num_applied: int = 0
    num_refused: int = 0
    num_failed: int = 0


@dataclass(slots=True)
class ControlLoop(Generic[State, Decision]):
    """Runs `policy` on the state of `engine` every `period_s` seconds of `clock`.

    A dry run applies nothing. `on_decision` is called for every decision, `on_problem` once for each distinct problem.
    """

    clock: Clock
    engine: ControlledEngine[State, Decision]
    policy: ControlPolicy[State, Decision]
    period_s: float
    _: KW_ONLY
    dry_run: bool = False
    on_decision: Callable[[Decision, ApplyOutcome], None] | None = None
    on_problem: Callable[[str], None] = logger.warning
    counters: LoopCounters = field(default_factory=LoopCounters, init=False)
    _tick_timer: Timer | None = field(default=None, init=False)
    _reported: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        if not self.period_s > 0:
            raise BadInput(f"the period is {self.period_s} s; a control loop needs one above zero")

    def start(self) -> None:
        """Take the first step as soon as the clock runs, then one every period."""
        if self._tick_timer is None:
            self._tick_timer = self.clock.after(0, self._tick)

    def stop(self) -> None:
        """Take no further step; `start` may follow."""
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        self._tick_timer = None

    def step(self) -> None:
        """Observe, decide and apply once; never raises for what the policy or the engine does."""
        self.counters.num_rounds += 1
        try:
            decisions = tuple(self.policy.decide(self.engine.observe()))
        except Exception as error:
            self.counters.num_failed_rounds += 1
            self._report("no decisions this round", error)
            return
        for decision in decisions:
            self._carry_out(decision)

    def _tick(self) -> None:
        self._tick_timer = self.clock.after(self.period_s, self._tick)
        self.step()

    def _carry_out(self, decision: Decision) -> None:
        outcome = "dry run" if self.dry_run else self._apply(decision)
        self.counters.num_decisions += 1
        self.counters.num_applied += outcome == "applied"
        self.counters.num_refused += outcome == "refused"
        self.counters.num_failed += outcome == "failed"
        if self.on_decision is not None:
            try:
                self.on_decision(decision, outcome)
            except Exception as error:
                self._report("a listener failed", error)

    def _apply(self, decision: Decision) -> ApplyOutcome:
        try:
            self.engine.apply(decision)
        except TakeupError as error:
            self._report(f"refused {decision}", error)
            return "refused"
        except Exception as error:
            self._report(f"could not apply {decision}", error)
            return "failed"
        return "applied"

    def _report(self, what: str, error: Exception) -> None:
        message = f"{type(error).__name__}: {error}"
        if message not in self._reported and len(self._reported) < MOST_REPORTS:
            self._reported.add(message)
            self.on_problem(f"{what}: {message}")
