"""What the laboratory tries, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Literal

from takeup.training.model import Profile

__all__ = ["Outcome", "Runtime", "Trial"]

Runtime = Literal["stock_1f1b", "stock", "adaptive"]


@dataclass(frozen=True, slots=True)
class Trial:
    """Some iterations of one pipeline, whose stages and links are as `truth` says.

    `stock_1f1b` is PyTorch's `Schedule1F1B`, `stock` its runtime with the given `order`, `adaptive` our schedule, which
    begins with ZB-H1 (or with `order`) and looks for a better one after every second iteration. With `max_sends=1` in
    the truth, a rank that sends over a slow link computes nothing until its message has left, unless a delegate sends.
    With `beside_stock` every iteration is also run by PyTorch's runtime with the given order, by the same processes, in
    turns; so what differs is not the machine. With `cables` every rank has a network of its own, messages are long, and
    the service of a link is the bandwidth of a cable between two of them.
    """

    name: str
    runtime: Runtime
    truth: Profile
    order: str = ""
    num_iterations: int = 5
    every: int = 2
    planner: str = "adaptra"
    timeout_s: float = 60.0
    beside_stock: bool = False
    cables: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How long iterations took, over all ranks, and what the adaptive schedule found and did.

    `gradient_error` is the largest difference from a single process, relative to the largest gradient. `pauses_s` says
    how long the slowest rank planned, compared and switched, each time that ranks agreed; `swaps_s` only the switching.
    `cpus_s` is the CPU time of every iteration, mean of all ranks; `stock_s` and `stock_cpus_s` are of the runs beside.
    """

    name: str
    iterations_s: tuple[float, ...]
    gradient_error: float
    order: str = ""
    changed_after: tuple[int, ...] = ()
    delegated: tuple[int, ...] = ()
    measured: Profile | None = None
    pauses_s: tuple[float, ...] = ()
    swaps_s: tuple[float, ...] = ()
    cpus_s: tuple[float, ...] = ()
    stock_s: tuple[float, ...] = ()
    stock_cpus_s: tuple[float, ...] = ()

    @property
    def settled_s(self) -> float:
        """The median iteration once nothing changes any more; the first one also connects ranks."""
        return median(self.iterations_s[max((1, *self.changed_after)) :])
