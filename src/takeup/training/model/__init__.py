"""Data types of training: pipelines with stages and links, schedules, plans and timelines."""

from __future__ import annotations

from takeup.training.model.pipeline import Link, Profile, Stage
from takeup.training.model.plan import PipelinePlan, Span, Timeline
from takeup.training.model.schedule import Op, OpKind, Schedule

__all__ = ["OpKind", "Link", "Op", "PipelinePlan", "Profile", "Schedule", "Span", "Stage", "Timeline"]
