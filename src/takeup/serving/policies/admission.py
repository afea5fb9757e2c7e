"""Admission control: refuses a request when the queue is full or when it is expected to miss its deadline."""

from __future__ import annotations

import math
from dataclasses import dataclass

from takeup.errors import BadInput


@dataclass(frozen=True, slots=True)
class Admission:
    """At most `max_waiting` requests wait; with `in_time`, requests expected to miss their deadline are refused.

    Work on an image that will be late delays all other requests, so early refusal serves more of them in time.
    """

    max_waiting: float = math.inf
    in_time: bool = False

    def __post_init__(self) -> None:
        if not self.max_waiting >= 0:
            raise BadInput(f"max_waiting is {self.max_waiting:g}; give how many may wait, from 0 up")

    def __call__(self, num_waiting: int, expected_s: float, left_s: float) -> bool:
        """Whether to admit a request that is expected to take `expected_s` and has `left_s` until its deadline."""
        return num_waiting < self.max_waiting and (not self.in_time or expected_s <= left_s)
