"""In the rank: pause before the call that the controller chose, run its tests, and resume.

How it works. All ranks count the calls of a kind alike, so "before the n-th reduction of this size" is the same point
of the job for all of them, and none pauses inside a call that others wait for. The controller renews a lease while
ranks should pause; when the lease expires, every rank resumes by itself. The tests use separate connections and draw no
random numbers: the results of the job do not change.
"""

import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from takeup.core.files import write_atomically
from takeup.training.stragglers.watch.ring import HeaderWord, RingBuffer

CallSort = tuple[int, int, int]
LOOK_EVERY_S = 0.002
TOGETHER = 8  # products between two reads of the clock
CONNECT = timedelta(seconds=5)
MOMENT_S, MOST_REPEATS = 0.03, 60
CUDA: Any = torch.cuda  # which has no types


def pause_if_requested(ring: RingBuffer, folder: Path, kind: CallSort, count: int) -> None:
    """Pause if this is the call before which all ranks were requested to stop."""
    words = ring.words
    pause = words[HeaderWord.STOP]
    asked = (words[HeaderWord.STOP_OPERATION], words[HeaderWord.STOP_GROUP], words[HeaderWord.STOP_SIZE])
    if asked != kind or not _has_lease(ring):
        return
    words[HeaderWord.STOP_SEEN] = count
    if count != words[HeaderWord.STOP_COUNT] or abs(words[HeaderWord.STOPPED]) == pause:
        return
    words[HeaderWord.STOPPED] = pause
    _run_tests_until_resumed(ring, folder, pause)
    words[HeaderWord.STOPPED] = -pause


def _has_lease(ring: RingBuffer) -> bool:
    return time.monotonic_ns() < ring.words[HeaderWord.LEASE_UNTIL_NS]


def _run_tests_until_resumed(ring: RingBuffer, folder: Path, pause: int) -> None:
    words = ring.words
    while words[HeaderWord.STOP] == pause and _has_lease(ring):
        task = words[HeaderWord.TASK]
        if task != words[HeaderWord.TASK_DONE]:
            _run_test(folder, task, words[HeaderWord.RANK])
            words[HeaderWord.TASK_DONE] = task
        time.sleep(LOOK_EVERY_S)


def _run_test(folder: Path, task: int, rank: int) -> None:
    """Run the test described by the task file, and write its result."""
    try:
        asked = json.loads((folder / f"task-{task}.json").read_text("utf-8"))
        with torch.no_grad():
            found = TASKS[asked["kind"]](asked)
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    write_atomically(folder / f"result-{task}-{rank}.json", json.dumps(found))


# Tests ----------------------------------------------------------------------------------------------------------------


def _compute(asked: dict[str, Any]) -> dict[str, Any]:
    """Mean time of a matrix product on the device of this rank, and mean run-queue wait."""
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
    """Run-queue wait of this thread in seconds; 0 if the kernel does not report it."""
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
    """Half the round-trip time of a message over every link of this rank, by peer rank."""
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
    """Minimum of `num_repeats` times, plus as many as fit into `MOMENT_S`, as short ones are noisy."""
    shortest_s = min(_round_trip_s(group, message, peer, is_first) for _ in range(num_repeats))
    more = torch.tensor([min(MOST_REPEATS, MOMENT_S / shortest_s)], dtype=torch.int64)
    (group.send if is_first else group.recv)([more], peer, 0).wait(CONNECT)  # both ranks must repeat equally often
    return min([shortest_s, *(_round_trip_s(group, message, peer, is_first) for _ in range(int(more)))])


def _round_trip_s(group: Any, message: torch.Tensor, peer: int, is_first: bool) -> float:
    start_s = time.perf_counter()
    for sends in (is_first, not is_first):
        work = group.send([message], peer, 0) if sends else group.recv([message], peer, 0)
        work.wait(CONNECT)
    return (time.perf_counter() - start_s) / 2


TASKS = {"compute": _compute, "links": _links}
