"""The replayed cluster: a whole trace under a scheduler, from event to event."""

from takeup.cluster.simulate.replay import ReplayPrefix, replay

__all__ = ["ReplayPrefix", "replay"]
