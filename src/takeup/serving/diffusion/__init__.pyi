from takeup.serving.diffusion.engine.steps import StepEngine as StepEngine
from takeup.serving.diffusion.engine.tiny import tiny as tiny
