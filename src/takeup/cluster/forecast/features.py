"""Inputs of a forecast: the calendar, lags and means of recent demand, and weights of similar past hours."""

from collections.abc import Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from takeup.cluster.forecast.forecaster import DemandHistory
from takeup.core.arrays import Floats

HOURS_A_DAY = 24


@dataclass(frozen=True, slots=True)
class WeekCalendar:
    """Five workdays and two days off, with exceptions; hour 0 is midnight of weekday `first_weekday` (Monday is 0)."""

    first_weekday: int = 0
    holidays: Set[int] = frozenset()  # days counted from day 0
    working_weekends: Set[int] = frozenset()

    def day_kind(self, hour: int) -> int:
        """1 for days off, 0 for workdays."""
        day = hour // HOURS_A_DAY
        weekend = self.weekday(hour) >= 5
        return int(day in self.holidays or (weekend and day not in self.working_weekends))

    def weekday(self, hour: int) -> int:
        """0 for Monday to 6 for Sunday."""
        return (hour // HOURS_A_DAY + self.first_weekday) % 7


# What the next hours may depend on, all relative to the current value and in units of the usual hourly change ---------
#
# Columns: recent hours; the same hours and their neighbours one day, two days and one week back; means of the last 6,
# 24, 168 and 672 hours; the extremes of the last day; a constant; and the hour of the day. Anchored on the present and
# scaled by the movement of the series itself, organisations of any size share weights, and a shift of level does no
# harm.

LAGS = (1, 2, 3, 4, 6, 12)
SEASONS = (24, 48, 168)
MEANS = (6, 24, 168, 672)
LONGEST_HOURS = max(MEANS)
LARGEST = 20.0  # a jump of more usual changes than this teaches no more than one of this size
MEMORY_HOURS = 336
LEAST_SCALE = 1e-6


class DemandFeatures:
    """Rows of features, one per series, and the running scale they are measured in."""

    def __init__(self, num_hours: int) -> None:
        lags = [*LAGS, *(season - ahead for season in SEASONS for ahead in range(num_hours + 1))]
        self.rows = -1 - np.array(lags)
        self.num_columns = len(lags) + len(MEANS) + 2 + 1 + HOURS_A_DAY
        self.largest, self.least_unit = LARGEST, LEAST_SCALE
        self.scale = np.zeros(0)
        self.num_seen = np.zeros(0)

    def update(self, history: DemandHistory) -> None:
        """Let the latest hour count in the scale: a mean of absolute hourly changes that forgets over two weeks."""
        num_new = history.num_series - len(self.scale)
        self.scale, self.num_seen = (np.concatenate([each, np.zeros(num_new)]) for each in (self.scale, self.num_seen))
        known = history.known[-2:].all(axis=0)
        self.num_seen += known
        change = np.abs(history.values[-1] - history.values[-2])
        rate = known / np.clip(self.num_seen, 1.0, MEMORY_HOURS)
        self.scale += rate * (change - self.scale)

    def unit(self) -> Floats:
        """The scale, safe to divide by."""
        return np.maximum(self.scale, LEAST_SCALE)

    def matrix(self, history: DemandHistory) -> Floats:
        """`[series, column]` at the latest hour."""
        values, day = history.values, history.values[-HOURS_A_DAY:]
        means = [values[-num:].mean(axis=0) for num in MEANS]
        levels = np.vstack([values[self.rows], *means, day.max(axis=0), day.min(axis=0)])
        moves = np.clip((levels - values[-1]) / self.unit(), -LARGEST, LARGEST).T
        hour = np.zeros((len(moves), 1 + HOURS_A_DAY))
        hour[:, [0, 1 + (history.hour or 0) % HOURS_A_DAY]] = 1.0
        return np.hstack([moves, hour])


KERNEL_HOURS = 1.0
OTHER_HOURS_WEIGHT = 0.05  # what an hour at another time of day still counts
OTHER_DAYS_WEIGHT = 0.5
KEEP_SHARE = 0.9985  # of the weight, per hour of age: half after 19 days


class HourSimilarity:
    """Weights of the hours in a window of residuals; slots as in `Residuals`."""

    def __init__(self, calendar: WeekCalendar, num_slots: int) -> None:
        self.calendar, self.num_slots, self.next_slot = calendar, num_slots, 0
        self.day_kinds = np.full(num_slots, -1)
        apart = np.arange(HOURS_A_DAY)
        apart = np.minimum(apart, HOURS_A_DAY - apart)
        self.by_hours_apart = np.exp(-0.5 * (apart / KERNEL_HOURS) ** 2)
        self.by_age = KEEP_SHARE ** np.arange(num_slots)

    def add(self, hour: int) -> None:
        """The next slot belongs to this hour."""
        self.day_kinds[self.next_slot] = self.calendar.day_kind(hour)
        self.next_slot = (self.next_slot + 1) % self.num_slots

    def weights(self, hour: int, leads: npt.NDArray[np.int64]) -> Floats:
        """`[lead, slot]`: how alike the hour `lead` after this one, the last added, is to the hour of each slot."""
        ages = (self.next_slot - 1 - np.arange(self.num_slots)) % self.num_slots
        daytime = self.by_hours_apart[(ages + leads[:, None]) % HOURS_A_DAY]
        kinds = np.array([self.calendar.day_kind(hour + int(lead)) for lead in leads])
        same_day = np.where(self.day_kinds == kinds[:, None], 1.0, OTHER_DAYS_WEIGHT)
        return np.asarray((OTHER_HOURS_WEIGHT + daytime * same_day) * self.by_age[ages])
