"""How much a past hour says about a coming one: the same time of day, the same kind of day, and not long ago."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from takeup.cluster.policies.gfs.forecast.calendar import Calendar
from takeup.core.arrays import Floats

KERNEL_HOURS = 1.0
OTHER_HOURS_WEIGHT = 0.05  # what an hour at another time of day still counts
OTHER_DAYS_WEIGHT = 0.5
KEEP_SHARE = 0.9985  # of the weight, per hour of age: half after 19 days
HOURS_A_DAY = 24


class HourSimilarity:
    """Weights of the hours in a window of residuals; slots as in `Residuals`."""

    def __init__(self, calendar: Calendar, num_slots: int) -> None:
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
