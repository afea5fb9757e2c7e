"""Sources of profiles and schedules: random generators and files."""

from __future__ import annotations

from takeup.training.traces.files import load_profile, load_schedule, save_profile, save_schedule
from takeup.training.traces.profiles import random_profile

__all__ = ["load_profile", "load_schedule", "random_profile", "save_profile", "save_schedule"]
