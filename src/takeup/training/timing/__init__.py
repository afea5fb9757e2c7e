"""Timing of pipelines: when every operation of a schedule starts and ends, and lower bounds for any schedule.

Used by planners and the simulator; it is pure.
"""

from __future__ import annotations

from takeup.training.timing.bounds import least_iteration_s
from takeup.training.timing.runs import SearchedSchedule, generate_schedule, search_schedule, timeline_of

__all__ = ["SearchedSchedule", "generate_schedule", "least_iteration_s", "search_schedule", "timeline_of"]
