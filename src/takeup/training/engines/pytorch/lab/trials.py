"""Trials of the laboratory and their outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Literal

from takeup.training.model.pipeline import Profile

RuntimeName = Literal["stock_1f1b", "stock", "adaptive"]


@dataclass(frozen=True, slots=True)
class LabTrial:
    """Iterations of one pipeline, with stages and links as given by `truth`.

    `stock_1f1b` is PyTorch's `Schedule1F1B`, `stock` its runtime with the given `order`, `adaptive` our schedule, which
    starts with ZB-H1 (or with `order`) and replans every `every` iterations. With `max_sends=1` in the truth, a rank
    that sends over a slow link computes nothing until its message has been sent, unless a delegate sends.
    With `beside_stock` every iteration is also run by PyTorch's runtime with the given order, alternating in the same
    processes, so that both see the same machine. With `cables` every rank has a network namespace, messages are long,
    and the service time of a link is set by the bandwidth of a veth pair.
    """

    name: str
    runtime: RuntimeName
    truth: Profile
    order: str = ""
    num_iterations: int = 5
    every: int = 2
    planner: str = "adaptra"
    timeout_s: float = 60.0
    beside_stock: bool = False
    cables: bool = False


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """Iteration times over all ranks, and the measurements and changes of the adaptive schedule.

    `gradient_error` is the largest difference from a single process, relative to the largest gradient. `pauses_s` is
    the time the slowest rank spent planning, comparing and switching, per agreement; `swaps_s` only the switching.
    `cpus_s` is the CPU time of every iteration, mean of all ranks; `stock_s` and `stock_cpus_s` are of the stock runs.
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
        """Median iteration time after the last schedule change, without the first, which also connects ranks."""
        return median(self.iterations_s[max((1, *self.changed_after)) :])
