"""Which hours are alike: the kind of day an hour falls on, behind a protocol so that any holiday table fits."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Protocol

HOURS_A_DAY = 24


class Calendar(Protocol):
    """Sorts hours into kinds; hours are counted from any midnight."""

    def day_kind(self, hour: int) -> int:
        """A small number that is equal for days of the same kind, such as 0 for workdays and 1 for others."""
        ...

    def weekday(self, hour: int) -> int:
        """0 for Monday to 6 for Sunday."""
        ...


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
