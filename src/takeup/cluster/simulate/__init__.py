"""The replayed cluster: a whole trace under a scheduler, from event to event."""

from takeup.cluster.simulate.replay import Begun, replay

__all__ = ["Begun", "replay"]
