"""The seam of cluster: a scheduler sees a state and answers with decisions; an engine shows the one and does the other.

A scheduler is pure: the same state gives the same decisions, and no duration of a job is ever in a state. What it needs
to remember beyond a state (a forecast, a feedback coefficient) is a value that `decide` alone changes. Simulated and
real engines are siblings: what is decided about one state is the same everywhere. Open this first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from takeup.cluster.model import Decision, State


class Scheduler(Protocol):
    """Decides which jobs start on which nodes, wait or are evicted, and how much may be promised."""

    @property
    def name(self) -> str:
        """What reports call it."""

    def decide(self, state: State) -> Sequence[Decision]:
        """What to do now, each decision with its reason, in the order in which to carry them out."""


class ClusterEngine(Protocol):
    """A real or simulated cluster."""

    def observe(self) -> State:
        """The cluster as it is now."""

    def apply(self, decision: Decision) -> None:
        """Carry one decision out; a TakeupError refuses it and leaves everything as it was."""
