"""The replayed cluster: a whole trace under a scheduler, from event to event."""

from takeup.cluster.scheduling import layout
from takeup.cluster.simulate.replay import ReplayPrefix, replay
from takeup.core.compiled import drop_stale_code

__all__ = ["ReplayPrefix", "replay"]

drop_stale_code(__file__, layout.__file__)
