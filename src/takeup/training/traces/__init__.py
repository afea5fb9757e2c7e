"""Sources of profiles and schedules: random generators and files."""

from takeup.training.traces.profiles import load_profile, load_schedule, random_profile, save_profile, save_schedule

__all__ = ["load_profile", "load_schedule", "random_profile", "save_profile", "save_schedule"]
