"""Restarts of a job through torchrun: when one pays, what it costs, and which ranks are swapped.

How it works. All ranks write a checkpoint and exit with the same code, and torchrun restarts them (`--max-restarts`).
A starting process reads a rank permutation from a file, and takes that rank instead of the one from torchrun: so ranks
swap roles, each on its previous device, without changes to the script. The duration of the restart is measured and used
as the cost in the next decision.
"""

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from takeup.core.files import write_atomically

ORDER = "order.json"
GIVEN = "TAKEUP_WATCH_GIVEN_RANK"
RestartWait = Callable[[float, float, Sequence[float]], float]  # loss share, cost and durations seen, all in seconds


@dataclass(slots=True)
class Restarts:
    """The restarts of one job.

    `after_s` is the lost time after which to restart, or `cost_s` the estimated cost of a restart: then `wait` returns
    how long an event must have lasted. With neither there are no restarts.
    """

    folder: Path
    wait: RestartWait
    after_s: float | None = None
    cost_s: float | None = None
    durations_s: list[float] = field(default_factory=list)
    order: tuple[int, ...] = ()
    _asked_s: float | None = None

    def is_due(self, lasted_s: float, lost_s: float) -> bool:
        """Whether an event with this duration and lost time justifies a restart."""
        if self.is_under_way or lasted_s <= 0:
            return False
        if self.after_s is not None:
            return lost_s >= self.after_s
        if self.cost_s is None:
            return False
        return lasted_s >= self.wait(lost_s / lasted_s, self.cost_s, self.durations_s)

    @property
    def is_under_way(self) -> bool:
        """Whether a requested restart has not completed yet."""
        return self._asked_s is not None

    def asked(self) -> None:
        """Record that a restart was requested now."""
        self._asked_s = time.monotonic()

    def completed(self) -> float | None:
        """Record that ranks have restarted; return the restart time in seconds if it was requested, else None."""
        if self._asked_s is None:
            return None
        took_s, self._asked_s = time.monotonic() - self._asked_s, None
        self.cost_s = took_s if self.cost_s is not None else None
        return took_s

    def use(self, order: Sequence[int]) -> None:
        """After the restart, the process that now has rank n becomes rank order[n]."""
        before = self.order or tuple(range(len(order)))
        self.order = tuple(order[rank] for rank in before)  # indexed by the rank from torchrun
        write_atomically(self.folder / ORDER, json.dumps(self.order))


def will_be_restarted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this rank would be restarted if it exited: not if torchrun has no restart left; True without torchrun."""
    most, number = (environment.get(f"TORCHELASTIC_{name}", "") for name in ("MAX_RESTARTS", "RESTART_COUNT"))
    return not (most.isdigit() and number.isdigit()) or int(number) < int(most)


def apply_rank_order(folder: Path | str, environment: Any = os.environ) -> None:
    """In a process started by torchrun: replace its rank according to the permutation file."""
    given = environment.get(GIVEN, environment.get("RANK"))
    if given is None or "TORCHELASTIC_RUN_ID" not in environment:
        return
    with suppress(OSError, ValueError):  # the file is missing or invalid
        order = _valid_order(json.loads(Path(folder, ORDER).read_text("utf-8")), environment)
        if order is not None:
            environment[GIVEN], environment["RANK"] = given, str(order[int(given)])


def _valid_order(order: Any, environment: Mapping[str, str]) -> list[int] | None:
    """The order if it is a permutation of all ranks, else None."""
    number = int(environment.get("WORLD_SIZE", "0"))
    return order if isinstance(order, list) and sorted(order) == list(range(number)) else None
