"""Timing of pipelines: when every operation of a schedule starts and ends, and lower bounds for any schedule.

Used by planners and the simulator; it is pure.
"""

from __future__ import annotations

from takeup.training.timing.bounds import least_iteration_s
from takeup.training.timing.runs import Searched, generated, searched, timeline_of

__all__ = ["Searched", "generated", "least_iteration_s", "searched", "timeline_of"]
