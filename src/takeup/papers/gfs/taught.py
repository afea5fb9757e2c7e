"""Warm start of the forecast: trained once on the hours before a window, for all schedulers compared in it.

Until a window begins FIFO serves, regardless of the scheduler that follows, so all of them see the same demand up to
then. Training on these hours again for every scheduler would be most of the work of a reproduction.
"""

from __future__ import annotations

from copy import deepcopy

from takeup.cluster.fleet.outcome import Outcome
from takeup.cluster.policies.gfs.quota.allocator import forecast_by
from takeup.cluster.policies.gfs.quota.demand import HourlyDemand

DEMAND_STEP_S = 3600.0


class WarmStart:
    """Makes forecasts of the only pool of a draw, each with everything learned so far."""

    def __init__(self) -> None:
        self._forecast = forecast_by()()

    def learn(self, outcome: Outcome) -> None:
        """Learn the hours before the window of a replay that are not known yet."""
        known, end = self._forecast.num_hours_seen, int(outcome.from_s // DEMAND_STEP_S)
        if known < end:
            self._forecast.learn(outcome.demand_gpus[0, known:end], float(outcome.capacity_gpus[0]))

    def __call__(self) -> HourlyDemand:
        """An independent copy."""
        return deepcopy(self._forecast)
