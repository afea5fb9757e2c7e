"""What high-priority demand of a pool stays under from now on, for some hours and with some probability.

How it works. A forecaster predicts whole hours and learns when one is over. In between, demand of the current hour
above the last one shifts the forecast; demand below does not, for it may come back. Before the first hour is over there
is no history: then demand is a random walk, by a quarter of the pool in an hour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, sqrt
from statistics import NormalDist
from typing import Protocol

import numpy as np
import numpy.typing as npt

from takeup.cluster.fleet.evidence import Evidence
from takeup.cluster.policies.gfs.forecast import Forecaster

HOUR_S = 3600.0
TINY_H = 1e-9
GUESSED_SHARE = 0.25  # of the pool: how far demand moves in an hour while nothing is known


def in_nodes(evidence: Evidence) -> Evidence | None:
    """The same evidence counted in nodes: a node with a high-priority job is taken, whole; None if unknown.

    Sixty-four idle GPUs, one on each node, are of no use to a gang; the number of whole nodes is a separate series.
    """
    if not evidence.num_nodes or len(evidence.hourly_high_nodes) != len(evidence.hourly_demand):
        return None
    now, hourly = np.array([evidence.high_nodes_now]), evidence.hourly_high_nodes[:, None]
    return replace(evidence, capacity_gpus=float(evidence.num_nodes), demand_now=now, hourly_demand=hourly)


class DemandForecast(Protocol):
    """A forecast of one pool that follows the evidence."""

    def update(self, evidence: Evidence) -> None:
        """Take in what is known now."""

    def max_quantiles(self, hours: Sequence[float], probability: float) -> list[float]:
        """GPUs that demand stays under for each number of hours from now."""


class HourlyDemand:
    """Adapts any forecaster of hourly demand to queries at any moment; the pool is one series."""

    def __init__(self, model: Forecaster) -> None:
        self.model = model
        self.num_hours_seen = 0
        self.capacity_gpus = 0.0
        self.hour_passed_share = 0.0
        self.surplus_gpus = 0.0
        self.last_gpus = 0.0
        self.bounds: dict[float, list[float]] = {}

    def update(self, evidence: Evidence) -> None:
        """Learn the hours that are over; note how far the present one is above the last."""
        self.capacity_gpus = evidence.capacity_gpus
        if len(evidence.hourly_demand) > self.num_hours_seen:
            self.learn(evidence.hourly_demand[self.num_hours_seen :].sum(axis=1), evidence.capacity_gpus)
        self.hour_passed_share = evidence.now_s / HOUR_S % 1.0
        self.surplus_gpus = max(0.0, float(evidence.demand_now.sum()) - self.last_gpus)

    def learn(self, hourly_gpus: npt.NDArray[np.float64], capacity_gpus: float) -> None:
        """Demand of the next hours that are over, one or more."""
        for hour, gpus in enumerate(hourly_gpus.tolist(), start=self.num_hours_seen):
            self.model.observe(hour, [gpus])
        self.num_hours_seen += len(hourly_gpus)
        self.last_gpus = float(hourly_gpus[-1])
        forecast = self.model.forecast(capacity=capacity_gpus)
        table = forecast.maxima.quantiles[0].T.tolist()
        self.bounds = dict(zip(forecast.levels, table, strict=True))

    def max_quantiles(self, hours: Sequence[float], probability: float) -> list[float]:
        """GPUs that demand stays under for each number of hours from now, at most capacity."""
        if not self.bounds:
            return [min(self._guess_gpus(each, probability), self.capacity_gpus) for each in hours]
        bounds, passed_h, surplus = self.bounds[probability], self.hour_passed_share - TINY_H, self.surplus_gpus
        last = len(bounds) - 1
        return [min(bounds[min(ceil(passed_h + each) - 1, last)] + surplus, self.capacity_gpus) for each in hours]

    def _guess_gpus(self, hours: float, probability: float) -> float:
        """How far demand may rise, as long as no hour is over."""
        change = GUESSED_SHARE * self.capacity_gpus * sqrt(hours) * NormalDist().inv_cdf(probability)
        return self.surplus_gpus + max(0.0, change)
