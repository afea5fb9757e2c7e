"""Uncertainty that a plan does not see: how many cycles a task really takes, and how good the channel really is.

A plan reckons with a quantile, so that this share of the tasks takes no more cycles, and of the channels is no worse.
The truth is drawn once, and only the simulator sees it.
"""

from dataclasses import dataclass, replace
from math import inf, isfinite

import numpy as np
from scipy import stats

from takeup.core.seeds import Streams
from takeup.edge.model import Instance
from takeup.errors import BadInput


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """Cycles are those of the instance times a Gamma variable of mean one; gains are off by normal errors in dB.

    `cycles_shape` is the shape of the Gamma distribution: inf for cycles that are certain, 1 for exponential ones. The
    error of the gains, with standard deviation `gain_error_db`, is one for all subcarriers of a device.
    """

    cycles_shape: float = inf
    gain_error_db: float = 0.0
    quantile: float = 0.95

    def __post_init__(self) -> None:
        if not self.cycles_shape > 0:
            raise BadInput(
                f"cycles_shape is {self.cycles_shape:g}; give a number above zero, or inf for certain cycles"
            )
        if not (isfinite(self.gain_error_db) and self.gain_error_db >= 0):
            raise BadInput(f"gain_error_db is {self.gain_error_db:g}; give a finite number of zero or more")
        if not 0 < self.quantile < 1:
            raise BadInput(f"quantile is {self.quantile:g}; give a share between 0 and 1, such as 0.95")

    def planned(self, instance: Instance) -> Instance:
        """What plans reckon with."""
        margin_db = float(stats.norm.ppf(1 - self.quantile)) * self.gain_error_db
        return replace(
            instance, cycles=instance.cycles * self.cycles_factor(0.0), gains=instance.gains * 10 ** (margin_db / 10)
        )

    def truth(self, instance: Instance, streams: Streams) -> Instance:
        """What really is."""
        cycles, gains = instance.cycles, instance.gains
        if isfinite(self.cycles_shape):
            factors = streams.stream("cycles").gamma(self.cycles_shape, 1 / self.cycles_shape, len(cycles))
            cycles = cycles * np.maximum(factors, 1e-9)  # a task of no cycles is none
        if self.gain_error_db:
            errors_db = streams.stream("channel").normal(0.0, self.gain_error_db, (len(gains), 1))
            gains = gains * 10 ** (errors_db / 10)
        return replace(instance, cycles=cycles, gains=gains)

    def cycles_factor(self, at_least: float) -> float:
        """The quantile of the cycles over their mean, if it is known that they are more than `at_least` times it."""
        if not isfinite(self.cycles_shape):
            return max(1.0, at_least)
        gamma = stats.gamma(self.cycles_shape, scale=1 / self.cycles_shape)
        quantile = float(gamma.isf(gamma.sf(at_least) * (1 - self.quantile)))
        return max(at_least, quantile) if isfinite(quantile) else at_least


CERTAIN = Uncertainty()
