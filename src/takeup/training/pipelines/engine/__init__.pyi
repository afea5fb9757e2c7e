from takeup.training.pipelines.engine.adaptive import AdaptiveSchedule as AdaptiveSchedule
from takeup.training.pipelines.engine.adaptive import ScheduleChange as ScheduleChange
