"""Slow because the cores of a machine do other work: neither a slow device nor a slow link, though it looks like both.

A rank that is ready to run and does not get a core computes late, sends late and receives late. The system knows for
how long it waited. If for most ranks that grew by enough of what iterations lost, it explains them, and nobody is
blamed. A single rank without a core is slow like any other. Where nobody was to blame anyway, it is enough if all ranks
together waited so much longer: in a pipeline one waits for the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median

from takeup.training.model.slowdowns import Event, Suspect

__all__ = ["blamed_on_cores"]

LEAST_EXPLAINED = 0.5  # of what an iteration lost


def blamed_on_cores(event: Event, more_waiting_s: Mapping[int, float]) -> Event:
    """The event, blamed on cores if the time for which ranks wait for one in an iteration grew by enough; by rank."""
    lost_s = event.after_s - event.before_s
    waits_s = list(more_waiting_s.values()) or [0.0]
    explained_s = median(waits_s) if event.suspects else sum(waits_s)
    if not event.is_slow or lost_s <= 0 or explained_s < LEAST_EXPLAINED * lost_s:
        return event
    reason = (
        f"ready to run but without a core for {1e3 * explained_s:.4g} ms more in an iteration, of {1e3 * lost_s:.4g}"
    )
    ranks = tuple(sorted(more_waiting_s))
    return replace(event, suspects=(Suspect("host", ranks, event.factor, 0.0, f"{reason} ms that it lost"),))
