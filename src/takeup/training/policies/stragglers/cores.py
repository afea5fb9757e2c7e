"""Slow because the cores of a machine do other work: neither a slow device nor a slow link, though it looks like both.

A rank that is ready to run and does not get a core computes late, sends late and receives late. The system knows for
how long it waited. If that grew by most of what iterations lost, it explains them, and nobody else is blamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from takeup.training.model.slowdowns import Event, Suspect

__all__ = ["blamed_on_cores"]

LEAST_EXPLAINED = 0.5  # of what an iteration lost


def blamed_on_cores(event: Event, more_waiting_s: Mapping[int, float]) -> Event:
    """The event, blamed on cores if by rank the time spent waiting for one in an iteration grew by enough."""
    lost_s = event.after_s - event.before_s
    starved = sorted(rank for rank, more_s in more_waiting_s.items() if more_s >= LEAST_EXPLAINED * lost_s)
    if not event.is_slow or lost_s <= 0 or not starved:
        return event
    most_s = max(more_waiting_s.values())
    reason = (
        f"ready to run but without a core for {1e3 * most_s:.4g} ms more in an iteration, which lost {1e3 * lost_s:.4g}"
    )
    return replace(event, suspects=(Suspect("host", tuple(starved), event.factor, 0.0, f"{reason} ms"),))
