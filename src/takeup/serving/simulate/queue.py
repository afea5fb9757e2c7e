"""Discrete-event simulation of several instances: each arriving request is refused or routed to an instance.

Events are arrivals and state changes of instances. The policies are those of the real engine: batching, routing,
admission control, queue order and cache eviction.
"""

import heapq
import math
from collections.abc import Sequence

from takeup.errors import BadInput
from takeup.serving.contract import Admit, Route
from takeup.serving.model import Arrival, Design, QueueOutcome, Served
from takeup.serving.simulate.instance import InstancePolicies, SimulatedInstance


def simulate_queue(
    arrivals: Sequence[Arrival], design: Design, *, num_gpus: int, rules: InstancePolicies, route: Route, admit: Admit
) -> QueueOutcome:
    """Serve all arrivals, in the order of their times, on as many instances as the GPUs are enough for."""
    num_instances = num_gpus // design.gpus_per_instance
    if num_instances < 1:
        raise BadInput(f"{design.name} needs {design.gpus_per_instance} GPUs, found {num_gpus}; give more")
    served: list[Served] = []
    queue = _EventQueue(
        [SimulatedInstance(number, design, rules, served.append) for number in range(num_instances)], route, admit
    )
    for arrival in sorted(arrivals, key=lambda one: (one.arrival_s, one.number)):
        queue.run_until(arrival.arrival_s)
        if not queue.take(arrival):
            served.append(Served(arrival, "refused", arrival.arrival_s))
    queue.run_until(math.inf)
    instances = queue.instances
    return QueueOutcome(
        design.name,
        num_instances * design.gpus_per_instance,
        design.gpus_per_instance,
        tuple(sorted(served, key=lambda one: one.arrival.number)),
        sum(one.busy_s for one in instances),
        sum(one.num_calls for one in instances),
        sum(one.num_call_rows for one in instances),
        max(one.num_most_waiting for one in instances),
    )


class _EventQueue:
    """All instances, and when each of them must be looked at. What was planned and is no longer true is skipped."""

    def __init__(self, instances: Sequence[SimulatedInstance], route: Route, admit: Admit) -> None:
        self.instances = instances
        self._route, self._admit = route, admit
        self._heap: list[tuple[float, int]] = []
        self._planned: list[float | None] = [None] * len(instances)

    def take(self, arrival: Arrival) -> bool:
        """Send it to an instance, if it is let in there."""
        caches = [one.residents.names for one in self.instances]
        number = self._route(arrival.loras, caches, [one.num_inside for one in self.instances])
        instance = self.instances[number]
        left_s = arrival.deadline_s - arrival.arrival_s
        if not self._admit(instance.num_waiting, instance.expected_s(arrival), left_s):
            return False
        when_s = instance.add(arrival, arrival.arrival_s)
        if when_s is not None:
            self._plan(number, when_s)
        return True

    def run_until(self, until_s: float) -> None:
        """Process all events before this time; an arrival at the same time as an event is added before it."""
        while self._heap and self._heap[0][0] < until_s:
            when_s, number = heapq.heappop(self._heap)
            if when_s == self._planned[number]:
                self._plan(number, self.instances[number].advance_to(when_s))

    def _plan(self, number: int, when_s: float | None) -> None:
        self._planned[number] = when_s
        if when_s is not None:
            heapq.heappush(self._heap, (when_s, number))
