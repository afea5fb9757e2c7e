"""A scheduler at work on a cluster: a round after every change, and one every period."""

from __future__ import annotations

import logging
from collections.abc import Callable

from takeup.cluster.contract import Scheduler
from takeup.cluster.engines.kubernetes.engine import KubernetesEngine
from takeup.cluster.model import Decision, State
from takeup.core.clock import WallClock
from takeup.core.control import ApplyOutcome, ControlLoop

logger = logging.getLogger("takeup")


def follow(
    engine: KubernetesEngine,
    scheduler: Scheduler,
    *,
    period_s: float = 10.0,
    dry_run: bool = False,
    on_decision: Callable[[Decision, ApplyOutcome], None] | None = None,
    on_problem: Callable[[str], None] = logger.warning,
    until: Callable[[], bool] = lambda: False,
) -> ControlLoop[State, Decision]:
    """Observe, decide and apply until `until` says so; returns the loop with its counters."""
    loop = ControlLoop(
        WallClock(), engine, scheduler, period_s, dry_run=dry_run, on_decision=on_decision, on_problem=on_problem
    )
    while not until():
        loop.step()
        engine.wait_for_change(period_s)
    return loop
