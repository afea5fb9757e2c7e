"""Dispatch rules of a core. A task runs without preemption, and only after its upload is complete.

planned     each at its planned start; the earliest start first, where several are due
early       in the order of planned starts, as soon as it is complete and all before it have begun; at its planned start
            it does not wait for those any longer
edf         earliest deadline first among the complete tasks, at once
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

from takeup.edge.engines.cloudlet.plan import CloudletJob

DispatchRule = Literal["planned", "early", "edf"]
DISPATCH_RULES: tuple[str, ...] = get_args(DispatchRule)


class DispatchQueue:
    """Jobs that have not been given to a core, from the first in line to the last, and which of them are complete."""

    def __init__(self, jobs: Iterable[CloudletJob], rule: DispatchRule) -> None:
        self._rule = rule
        self._waiting = sorted(jobs, key=self._place)
        self._complete: set[int] = set()

    def _place(self, job: CloudletJob) -> tuple[float, float, int]:
        return (job.due_s if self._rule == "edf" else job.start_s, job.due_s, job.device)

    def complete(self, job: CloudletJob) -> None:
        """Mark the upload of a job as complete."""
        self._complete.add(job.device)

    def drop(self, job: CloudletJob) -> None:
        """Remove a job that will never run."""
        self._waiting = [other for other in self._waiting if other is not job]

    def put_back(self, job: CloudletJob) -> None:
        """Return a job that was taken but could not run."""
        self._waiting = sorted([*self._waiting, job], key=self._place)

    def not_before_s(self, job: CloudletJob) -> float:
        """When a job may begin at the earliest, once it is complete."""
        return job.start_s if self._rule == "planned" else 0.0

    def take_ahead(self) -> CloudletJob | None:
        """Take the job that is next whatever is uploaded until then; None if that is undecided."""
        is_sure = bool(self._waiting) and self._waiting[0].device in self._complete
        return self._waiting.pop(0) if is_sure else None

    def take(self, now_s: float) -> CloudletJob | None:
        """Take the job that a free core begins now, if there is one."""
        complete = [job for job in self._waiting if job.device in self._complete]
        job = next((job for job in complete if self._rule == "edf" or job.start_s <= now_s), None)
        if job is not None:
            self.drop(job)
        return job

    def wake_s(self) -> float | None:
        """When the next job may begin without further uploads; None if an upload must complete first."""
        return min((job.start_s for job in self._waiting if job.device in self._complete), default=None)
