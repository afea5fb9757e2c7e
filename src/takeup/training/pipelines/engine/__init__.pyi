from takeup.training.pipelines.engine.adaptive import AdaptiveSchedule as AdaptiveSchedule
from takeup.training.pipelines.engine.agreement import ScheduleChange as ScheduleChange
