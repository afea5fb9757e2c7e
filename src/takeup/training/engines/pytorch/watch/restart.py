"""Restarts of a job through torchrun: when one pays, what it costs, and which ranks exchange their roles meanwhile.

How it works. All ranks save and end with one exit code, and torchrun starts them anew (`--max-restarts`). A process
that starts looks for an order that was left for it, and takes another rank than torchrun gave it: so ranks exchange
their roles, each on the device it had, and the script knows nothing of it. What the restart took is measured, and the
next decision counts with that.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from takeup.core.files import write_atomically

__all__ = ["ORDER", "Restarts", "is_started_anew", "take_rank"]

ORDER = "order.json"
GIVEN = "TAKEUP_WATCH_GIVEN_RANK"
Wait = Callable[[float, float, Sequence[float]], float]  # loss share, cost and durations seen, all in seconds


@dataclass(slots=True)
class Restarts:
    """The restarts of one job.

    `after_s` is a loss after which to restart, or `cost_s` what a restart is thought to cost: then `wait` says how long
    an event must have lasted. With neither there are no restarts.
    """

    folder: Path
    wait: Wait
    after_s: float | None = None
    cost_s: float | None = None
    durations_s: list[float] = field(default_factory=list)
    order: tuple[int, ...] = ()
    _asked_s: float | None = None

    def is_due(self, lasted_s: float, lost_s: float) -> bool:
        """Whether an event that has lasted and cost so much is reason enough."""
        if self.is_under_way or lasted_s <= 0:
            return False
        if self.after_s is not None:
            return lost_s >= self.after_s
        if self.cost_s is None:
            return False
        return lasted_s >= self.wait(lost_s / lasted_s, self.cost_s, self.durations_s)

    @property
    def is_under_way(self) -> bool:
        """Whether ranks were asked and have not come back."""
        return self._asked_s is not None

    def asked(self) -> None:
        """Ranks were asked to restart, now."""
        self._asked_s = time.monotonic()

    def came_back(self) -> float | None:
        """Ranks have begun anew: how long that took, if we had asked for it."""
        if self._asked_s is None:
            return None
        took_s, self._asked_s = time.monotonic() - self._asked_s, None
        self.cost_s = took_s if self.cost_s is not None else None
        return took_s

    def use(self, order: Sequence[int]) -> None:
        """When ranks come back, the process that has rank n now becomes rank order[n]."""
        before = self.order or tuple(range(len(order)))
        self.order = tuple(order[rank] for rank in before)  # by the rank that torchrun gives
        write_atomically(self.folder / ORDER, json.dumps(self.order))


def is_started_anew(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this rank would be started anew if it ended: not if torchrun has no restart left; others know it best."""
    most, number = (environment.get(f"TORCHELASTIC_{name}", "") for name in ("MAX_RESTARTS", "RESTART_COUNT"))
    return not (most.isdigit() and number.isdigit()) or int(number) < int(most)


def take_rank(folder: Path | str, environment: Any = os.environ) -> None:
    """In a process that torchrun starts: take the rank that was ordered instead of the given one."""
    given = environment.get(GIVEN, environment.get("RANK"))
    if given is None or "TORCHELASTIC_RUN_ID" not in environment:
        return
    with suppress(OSError, ValueError):  # there is none, or none that makes sense
        order = _sound(json.loads(Path(folder, ORDER).read_text("utf-8")), environment)
        if order is not None:
            environment[GIVEN], environment["RANK"] = given, str(order[int(given)])


def _sound(order: Any, environment: Mapping[str, str]) -> list[int] | None:
    """The order, if it is one of as many ranks as there are."""
    number = int(environment.get("WORLD_SIZE", "0"))
    return order if isinstance(order, list) and sorted(order) == list(range(number)) else None
