"""Artificially slow links, below any hook: in the kernels that carry messages and reductions.

A message over a slow link, or a reduction of a slow group, takes `delay_s` longer for the ranks that wait for it. The
watcher has no access to these delays.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist

from takeup.training.engines.pytorch.watch.lab.jobs import WatchedJob
from takeup.training.engines.pytorch.worker import WorkerThread

C10D: Any = torch._C._distributed_c10d  # has no types for this


class SlowLinks:
    """The slow links of a job on one rank; the caller sets `iteration` to the current one."""

    def __init__(self, job: WatchedJob, rank: int) -> None:
        self.iteration = 0
        self._slow = [slow for slow in job.slow if slow.delay_s]
        self._rank = rank
        self._members: dict[str, list[int]] = {}
        if self._slow:
            library: Any = torch.library.Library("c10d", "IMPL", "CPU")  # type: ignore[no-untyped-call]
            if any(len(slow.ranks) > 2 for slow in self._slow):
                library.impl("allreduce_", self._reduce, allow_override=True)
            library.impl("recv_", self._receive, allow_override=True)
            self._library = library  # its registrations end when it is freed
            self._workers: dict[str, WorkerThread] = {}

    def _delay_s(self, ranks: list[int]) -> float:
        now = (slow for slow in self._slow if slow.first <= self.iteration < slow.last)
        return max((slow.delay_s for slow in now if set(slow.ranks) == set(ranks)), default=0.0)

    def _ranks(self, group: Any) -> list[int]:
        return self._members.setdefault(group.group_name, dist.get_process_group_ranks(group))

    def _reduce(self, tensors: list[torch.Tensor], boxed: Any, *_: Any) -> Any:
        group = dist.ProcessGroup.unbox(boxed)
        work = _backend(group).allreduce(tensors, dist.AllreduceOptions())  # a sum: these loops use nothing else
        delay_s = self._delay_s(self._ranks(group))
        if delay_s:
            work.wait()
            time.sleep(delay_s)
        return tensors, work.boxed()

    def _receive(self, tensors: list[torch.Tensor], boxed: Any, peer: int, tag: int) -> Any:
        group = dist.ProcessGroup.unbox(boxed)
        work = _backend(group).recv(tensors, peer, tag)
        delay_s = self._delay_s([self._rank, self._ranks(group)[peer]])
        if not delay_s:
            return work.boxed()
        done: torch.futures.Future[Any] = torch.futures.Future()

        def arrive() -> None:
            work.wait()
            time.sleep(delay_s)
            done.set_result(tensors)

        # In order within a group, as over a wire; one worker per group, as a group may block forever.
        self._workers.setdefault(group.group_name, WorkerThread("takeup-slow-link")).submit(arrive)
        return C10D._create_work_from_future(done).boxed()


def _backend(group: Any) -> Any:
    return group._get_backend(torch.device("cpu"))
