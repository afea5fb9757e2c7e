"""In the rank: stand still before the call that the controller named, run its tests, and go on.

How it works. All ranks count the calls of a kind alike, so "before the n-th reduction of this size" is the same moment
of the job for all of them, and none stands in the middle of a call that others wait for. The controller keeps a lease
alive while it wants ranks to stand; when it is not renewed, every rank goes on by itself. The tests have connections of
their own and draw no random numbers: the job computes what it would have computed.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from takeup.core.files import write_atomically
from takeup.training.engines.pytorch.watch.ring import Ring, Word

__all__ = ["Kind", "stop_if_asked"]

Kind = tuple[int, int, int]
LOOK_EVERY_S = 0.002
TOGETHER = 8  # products before anybody looks at the clock
CONNECT = timedelta(seconds=5)
MOMENT_S, MOST_REPEATS = 0.03, 60
CUDA: Any = torch.cuda  # which has no types


def stop_if_asked(ring: Ring, folder: Path, kind: Kind, count: int) -> None:
    """Stand still if this is the call before which all ranks were asked to."""
    words = ring.words
    pause = words[Word.STOP]
    asked = (words[Word.STOP_OPERATION], words[Word.STOP_GROUP], words[Word.STOP_SIZE])
    if asked != kind or not _has_lease(ring):
        return
    words[Word.STOP_SEEN] = count
    if count != words[Word.STOP_COUNT] or abs(words[Word.STOPPED]) == pause:
        return
    words[Word.STOPPED] = pause
    _stand(ring, folder, pause)
    words[Word.STOPPED] = -pause


def _has_lease(ring: Ring) -> bool:
    return time.monotonic_ns() < ring.words[Word.LEASE_UNTIL_NS]


def _stand(ring: Ring, folder: Path, pause: int) -> None:
    words = ring.words
    while words[Word.STOP] == pause and _has_lease(ring):
        task = words[Word.TASK]
        if task != words[Word.TASK_DONE]:
            _do(folder, task, words[Word.RANK])
            words[Word.TASK_DONE] = task
        time.sleep(LOOK_EVERY_S)


def _do(folder: Path, task: int, rank: int) -> None:
    """Do what the file of the task says, and write down what came of it."""
    try:
        asked = json.loads((folder / f"task-{task}.json").read_text("utf-8"))
        with torch.no_grad():
            found = TASKS[asked["kind"]](asked)
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    write_atomically(folder / f"result-{task}-{rank}.json", json.dumps(found))


# Tests ----------------------------------------------------------------------------------------------------------------


def _compute(asked: dict[str, Any]) -> dict[str, Any]:
    """How long products of matrices take on the device of this rank, on average; and for how long there was no core."""
    device = f"cuda:{torch.cuda.current_device()}" if CUDA.is_initialized() else "cpu"
    matrix = torch.full((asked["size"], asked["size"]), 0.5, device=device)
    _multiply(matrix)
    wall_s, waited_s, number = time.perf_counter(), _waited_s(), 0
    while time.perf_counter() - wall_s < asked["seconds"]:
        _multiply(matrix)
        number += TOGETHER
    passed_s = time.perf_counter() - wall_s, _waited_s() - waited_s
    return {"wall_s": passed_s[0] / number, "waited_s": passed_s[1] / number}


def _waited_s() -> float:
    """For how long this thread was ready to run but had no core; 0 where the kernel does not say."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_bytes().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def _multiply(matrix: torch.Tensor) -> None:
    for _ in range(TOGETHER):
        torch.mm(matrix, matrix)
    if matrix.is_cuda:
        torch.cuda.synchronize()


def _links(asked: dict[str, Any]) -> dict[str, Any]:
    """How long a message takes over every link of this rank, there and back, half of it; by the other rank."""
    rank, num_ranks = dist.get_rank(), dist.get_world_size()
    store = PrefixStore(f"takeup-watch-{asked['task']}", dist.distributed_c10d._get_default_store())
    group = dist.ProcessGroupGloo(store, rank, num_ranks, CONNECT)
    message = torch.zeros(asked["size_bytes"] // 4)
    found = {}
    for together in asked["passes"]:
        for one, other in together:
            if rank in (one, other):
                peer = other if rank == one else one
                found[str(peer)] = _shortest_s(group, message, peer, rank == one, asked["repeats"])
    return {"links_s": found}


def _shortest_s(group: Any, message: torch.Tensor, peer: int, is_first: bool, num_repeats: int) -> float:
    """The least of so many times, or of as many more as fit into a moment: short ones are often disturbed."""
    shortest_s = min(_there_and_back(group, message, peer, is_first) for _ in range(num_repeats))
    more = torch.tensor([min(MOST_REPEATS, MOMENT_S / shortest_s)], dtype=torch.int64)
    (group.send if is_first else group.recv)([more], peer, 0).wait(CONNECT)  # both must repeat it as often
    return min([shortest_s, *(_there_and_back(group, message, peer, is_first) for _ in range(int(more)))])


def _there_and_back(group: Any, message: torch.Tensor, peer: int, is_first: bool) -> float:
    start_s = time.perf_counter()
    for sends in (is_first, not is_first):
        work = group.send([message], peer, 0) if sends else group.recv([message], peer, 0)
        work.wait(CONNECT)
    return (time.perf_counter() - start_s) / 2


TASKS = {"compute": _compute, "links": _links}
