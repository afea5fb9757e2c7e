"""Policies of a server, selected by name: admission, queue order and routing.

The simulator uses the same objects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass

from takeup.errors import BadInput, UnknownName
from takeup.serving.contract import Admit, Route
from takeup.serving.line import ReorderingQueue
from takeup.serving.policies.adapters import ORDERS
from takeup.serving.policies.admission import Admission
from takeup.serving.policies.routing import ROUTES
from takeup.serving.server.gate import AdmissionQueue, Waiter


@dataclass(frozen=True, slots=True)
class ServerPolicies:
    """Policy names. `patience`: maximum times a job is overtaken; `in_time`: refuse jobs that would be late."""

    order: str = "shared_loads"
    patience: int = 64
    route: str = "affinity"
    in_time: bool = True

    def __post_init__(self) -> None:
        for kind, name, known in (("order of the queue", self.order, ORDERS), ("route", self.route, ROUTES)):
            if name not in known:
                raise UnknownName(kind, name, known)
        if self.patience < 0:
            raise BadInput(f"the patience is {self.patience}; give how many may overtake somebody, from 0 up")

    def router(self) -> Route:
        """The rule that selects the worker of a job."""
        return ROUTES[self.route]

    def admission(self, max_waiting: int) -> Admit:
        """The admission rule."""
        return Admission(max_waiting, self.in_time)

    def admission_queue(
        self, max_running: int, max_waiting: int, known: Callable[[], Collection[Hashable]]
    ) -> AdmissionQueue:
        """The gate that decides by these rules; `known` are the LoRAs that are in memory."""
        line = ReorderingQueue[Waiter](ORDERS[self.order], self.patience)
        return AdmissionQueue(max_running, self.admission(max_waiting), line, known)
