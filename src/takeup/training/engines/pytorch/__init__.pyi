from takeup.training.engines.pytorch.adaptive import AdaptiveSchedule as AdaptiveSchedule
from takeup.training.engines.pytorch.control import ScheduleChange as ScheduleChange
