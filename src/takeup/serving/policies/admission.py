"""Whether a request is let in: not when too many wait already, and not when its image would come too late anyway."""

from __future__ import annotations

import math
from dataclasses import dataclass

from takeup.errors import BadInput

__all__ = ["Admission"]


@dataclass(frozen=True, slots=True)
class Admission:
    """At most `max_waiting` requests wait; with `in_time`, nobody is let in who is not expected to make its deadline.

    Work on an image that nobody will wait for delays all others, so refusing early serves more of them in time.
    """

    max_waiting: float = math.inf
    in_time: bool = False

    def __post_init__(self) -> None:
        if not self.max_waiting >= 0:
            raise BadInput(f"max_waiting is {self.max_waiting:g}; give how many may wait, from 0 up")

    def __call__(self, num_waiting: int, expected_s: float, left_s: float) -> bool:
        """Whether to take a request that would end in `expected_s`, when `left_s` are left until its deadline."""
        return num_waiting < self.max_waiting and (not self.in_time or expected_s <= left_s)
