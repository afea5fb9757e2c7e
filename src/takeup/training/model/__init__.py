"""Data types of training: pipelines with stages and links, schedules, plans and timelines."""

from __future__ import annotations

from takeup.training.model.pipeline import Link, Profile, Stage
from takeup.training.model.plan import Plan, Span, Timeline
from takeup.training.model.schedule import Kind, Op, Schedule

__all__ = ["Kind", "Link", "Op", "Plan", "Profile", "Schedule", "Span", "Stage", "Timeline"]
