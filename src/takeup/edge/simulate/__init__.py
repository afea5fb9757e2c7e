"""Tasks that arrive over time: the site decides when they arrive, keeps its promises, and learns how long they take."""

from takeup.edge.simulate.site import simulate
from takeup.edge.simulate.uncertainty import CERTAIN, Uncertainty

__all__ = ["CERTAIN", "Uncertainty", "simulate"]
