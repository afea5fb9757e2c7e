"""Runs a scheduler on Slurm indefinitely, and exports the workload of each day.

Every day the jobs that ran become a workload for replays: how would another scheduler have done on the same day? In a
dry run this is all that happens, apart from decisions that are reported and not carried out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta

from takeup.cluster.contract import Scheduler
from takeup.cluster.engines.slurm.engine import SlurmEngine
from takeup.cluster.model import Decision, State, Workload
from takeup.core.clock import Clock
from takeup.core.control import ApplyOutcome, ControlLoop

DAY_S = 86_400.0
PERIOD_S = 0.5

logger = logging.getLogger("takeup")


def control(
    engine: SlurmEngine,
    scheduler: Scheduler,
    clock: Clock,
    *,
    period_s: float = PERIOD_S,
    on_decision: Callable[[Decision, ApplyOutcome], None] | None = None,
    on_problem: Callable[[str], None] = logger.warning,
    on_day: Callable[[Workload], None] | None = None,
) -> ControlLoop[State, Decision]:
    """A loop, already started, that works while the clock runs; an engine that only looks makes it a dry run."""
    loop: ControlLoop[State, Decision] = ControlLoop(
        clock,
        engine,
        scheduler,
        period_s,
        dry_run=engine.read_only,
        on_decision=on_decision,
        on_problem=on_problem,
    )
    if on_day is not None:
        every_day(engine, clock, on_day, on_problem)
    loop.start()
    return loop


def every_day(
    engine: SlurmEngine, clock: Clock, on_day: Callable[[Workload], None], on_problem: Callable[[str], None]
) -> None:
    """Pass the workload of the last 24 hours to `on_day`, every 24 hours; a failure is reported and ignored."""

    def look_back() -> None:
        clock.after(DAY_S, look_back)
        try:
            end = datetime.fromtimestamp(engine.wall()).astimezone()
            on_day(engine.past(end - timedelta(seconds=DAY_S), end)[0])
        except Exception as error:
            on_problem(f"no look back at this day: {type(error).__name__}: {error}")

    clock.after(DAY_S, look_back)
