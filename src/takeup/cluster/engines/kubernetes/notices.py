"""What users see: events on their pods, and a condition that says why a pod is pending. All of it is best effort."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from takeup.cluster.engines.kubernetes.client import Json
from takeup.cluster.engines.kubernetes.jobs import Gang
from takeup.cluster.engines.kubernetes.objects import Pod
from takeup.cluster.engines.kubernetes.writer import PodWriter, stamp
from takeup.cluster.model import Evict, Start

REPEAT_S = 60.0  # a reason that changes all the time is not told more often
MOST_TOLD = 10_000  # jobs whose reason is remembered
MOST_WAITING = 200  # notices under way; a server that is busy is spared the rest


@dataclass(slots=True)
class EventRecorder:
    """Emits events and conditions in the name of `component`."""

    writer: PodWriter
    component: str
    _told: dict[str, tuple[str, float]] = field(default_factory=dict)
    _num_under_way: int = 0

    def waits(self, gang: Gang, reason: str, now_s: float) -> None:
        """Report why the unbound pods of a gang are pending, once per reason and at most every `REPEAT_S`."""
        gang = tuple(pod for pod in gang if not pod.node)
        if not gang:
            return
        told, when_s = self._told.get(gang[0].job_id, ("", -REPEAT_S))
        if told == reason or now_s - when_s < REPEAT_S:
            return
        if len(self._told) > MOST_TOLD:
            self._told.clear()
        self._told[gang[0].job_id] = (reason, now_s)
        for pod in gang:
            if not pod.gates:  # one behind a gate says so already, and an autoscaler should not hear otherwise
                self._later(partial(self.writer.explain, pod, reason, now_s))
        self._event(gang[0], "Warning", "FailedScheduling", reason, now_s)

    def starts(self, gang: Gang, decision: Start, now_s: float) -> None:
        """Where these pods run, and on which terms."""
        self._told.pop(decision.job_id, None)
        for pod, node in zip(gang, decision.nodes, strict=True):
            message = f"assigned to {node}, {decision.grade.name.lower()}: {decision.reason}"
            self._event(pod, "Normal", "Scheduled", message, now_s)

    def leaves(self, gang: Gang, decision: Evict, now_s: float) -> None:
        """Report for which job these pods are evicted."""
        message = f"evicted for {decision.for_job or 'others'}: {decision.reason}"
        for pod in gang:
            self._event(pod, "Warning", "Preempted", message, now_s)

    def _event(self, pod: Pod, kind: str, reason: str, message: str, now_s: float) -> None:
        space, name = pod.key.split("/")
        event: Json = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{name}.", "namespace": space},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": space, "name": name, "uid": pod.uid},
            "type": kind,
            "reason": reason,
            "message": message[:1000],
            "source": {"component": self.component},
            "firstTimestamp": stamp(now_s),
            "lastTimestamp": stamp(now_s),
            "count": 1,
        }
        self._later(partial(self.writer.client.request, "POST", f"/api/v1/namespaces/{space}/events", event))

    def _later(self, action: Callable[[], object]) -> None:
        if self._num_under_way >= MOST_WAITING:
            return
        self._num_under_way += 1
        self.writer.later(lambda: self._tried(action))

    def _tried(self, action: Callable[[], object]) -> None:
        try:
            action()
        finally:
            self._num_under_way -= 1
