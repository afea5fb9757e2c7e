from takeup.serving.engines.diffusers.steps import StepEngine as StepEngine
from takeup.serving.engines.diffusers.tiny import tiny as tiny
