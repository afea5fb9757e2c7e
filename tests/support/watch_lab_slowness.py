"""Ranks and links slowed from outside: a process that is stopped periodically, a rate-limited link.

A rank that is stopped for part of the time computes slowly, whatever it computes. For slow links every rank has a
network namespace, with a veth pair to each other rank; a token bucket at both ends limits the rate.
All of this is done by the process that started the ranks, and needs Linux; veth pairs need root.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import combinations
from typing import Any

import torch
import torch.distributed as dist

from support.pipeline_lab.network import RankNetworks, rank_address, token_bucket
from support.watch_lab import SlowPeriod, WatchedJob
from takeup.training.pipelines.engine.messages import WorkerThread

# Artificially slow links, below any hook: in the kernels that carry messages and reductions ---------------------------
#
# A message over a slow link, or a reduction of a slow group, takes `delay_s` longer for the ranks that wait for it. The
# watcher has no access to these delays.

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


PERIOD_S = 0.04


class ExternalSlowness:
    """Applies the slowdowns of a job to its ranks, by current iteration."""

    def __init__(self, job: WatchedJob) -> None:
        self._slow = [slow for slow in job.slow if slow.is_stopped or slow.rate_bps]
        self._mesh = NetworkMesh(job.num_ranks) if any(slow.rate_bps for slow in self._slow) else None
        self._under_way: dict[SlowPeriod, list[PeriodicStops]] = {}

    def join(self, rank: int) -> None:
        """In the rank: enter its network namespace, if it has one."""
        if self._mesh is not None:
            self._mesh.join(rank)

    def at(self, iteration: int, processes: Sequence[int]) -> None:
        """Start and end the slowdowns due at this iteration; `processes` are the PIDs of the ranks."""
        for slow in self._slow:
            is_due = slow.first <= iteration < slow.last
            if is_due and slow not in self._under_way:
                self._under_way[slow] = self._begin(slow, processes)
            elif not is_due and slow in self._under_way:
                self._end(slow, self._under_way.pop(slow))

    def close(self) -> None:
        """End all slowdowns and close the network."""
        for slow in list(self._under_way):
            self._end(slow, self._under_way.pop(slow))
        if self._mesh is not None:
            self._mesh.close()

    def _begin(self, slow: SlowPeriod, processes: Sequence[int]) -> list[PeriodicStops]:
        if slow.rate_bps and self._mesh is not None:
            self._mesh.thin(slow.ranks, slow.rate_bps)
        return [PeriodicStops(processes[rank], slow.factor) for rank in slow.ranks] if slow.is_stopped else []

    def _end(self, slow: SlowPeriod, stops: Sequence[PeriodicStops]) -> None:
        if slow.rate_bps and self._mesh is not None:
            self._mesh.thin(slow.ranks, 0.0)
        for each in stops:
            each.close()


class PeriodicStops:
    """Stops a process for a part of every period, so that it takes `factor` times as long; until it is closed."""

    def __init__(self, process: int, factor: float) -> None:
        self._process = process
        self._runs_s = PERIOD_S / factor
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._stop_and_go, name="takeup-stops", daemon=True)
        self._thread.start()

    def _stop_and_go(self) -> None:
        while not self._over.wait(self._runs_s):
            self._send(signal.SIGSTOP)
            self._over.wait(PERIOD_S - self._runs_s)
            self._send(signal.SIGCONT)

    def _send(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._process, number)

    def close(self) -> None:
        """Stop pausing the process, and let it run."""
        self._over.set()
        self._thread.join()
        self._send(signal.SIGCONT)


class NetworkMesh(RankNetworks):
    """A veth pair between any two ranks."""

    def thin(self, ranks: Sequence[int], rate_bps: float) -> None:
        """Limit the links among these ranks to `rate_bps` bits per second; 0 removes the limit."""
        for one, other in combinations(sorted(ranks), 2):
            for here, there in ((one, other), (other, one)):
                verb = f"replace dev to{there} root {token_bucket(rate_bps)}" if rate_bps else f"del dev to{there} root"
                self._networks[here].command(f"tc qdisc {verb}")

    def _connect_namespaces(self) -> None:
        for number, (one, other) in enumerate(combinations(range(len(self._networks)), 2)):
            self._lay(number, one, other)

    def _lay(self, number: int, one: int, other: int) -> None:
        far = self._networks[other].path
        self._networks[one].command(f"ip link add to{other} type veth peer name to{one} netns {far}")
        near_end, far_end = f"198.19.{number}.1", f"198.19.{number}.2"
        for here, there, end, across in ((one, other, near_end, far_end), (other, one, far_end, near_end)):
            network = self._networks[here]
            network.command(f"ip address add {end}/30 dev to{there}")
            network.command(f"ip link set to{there} gso_max_segs 1 up")
            network.command(f"ip route add {rank_address(there)}/32 via {across} src {rank_address(here)}")
