"""Pipelines on one accelerator: `python -m benchmarks.training pipelines-gpu [--part queues,transport,schedule]`.

Experiments, each in processes of its own, printed as timelines and checked. Exit code 1 if a check fails.

queues      Blocks of compute, and behind each a slow send, played by a kernel that spins on a stream of its own. With
            one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1, as Megatron has it) compute waits; with many it goes on.
transport   Two processes on the same card, over Gloo, with a link that serves one message at a time. Sends in line with
            compute, or by the delegate: pinned memory, a stream for copies, threads. One hardware queue in both cases.

schedule    Stock 1F1B, stock ZB-H1 and the adaptive schedule train a small transformer in four processes on the card
            while one link is slow: predicted, measured, gradients compared (see pipeline_gpu_schedule.py).

Without CUDA (or with --device cpu) `queues` is left out, and a block of compute is a pause of the host. Not shown on
one card: NCCL between cards (it refuses two ranks on one device), GPUDirect, and stages that fill a card each.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from benchmarks.training import pipelines_gpu_schedule as schedule_part
from support.pipeline_lab.program import SlowWire, delayed_sends
from takeup.training.pipelines.engine.messages import DelegateReceiver, DelegateSender, private_group
from takeup.training.pipelines.profile import Link

ROOT = Path(__file__).parents[2]

NUM_BLOCKS, BLOCK_MS, SEND_MS = 6, 10.0, 60.0
NUM_ELEMENTS = 4 * 2**20 if torch.cuda.is_available() else 2**16  # 16 MiB in single precision; less without a card
TIMEOUT = timedelta(seconds=60)
MOST_STALL_SHARE = 0.25  # of a send: what compute may lose to one that goes beside it
Timeline = list[tuple[float, float]]
cuda: Any = torch.cuda  # whose functions are not annotated


# Compute --------------------------------------------------------------------------------------------------------------


class Card:
    """Blocks of compute on an accelerator, timed by its own clock."""

    def __init__(self) -> None:
        self._matrix = torch.randn(4096, 4096, device="cuda")
        self._identity = torch.eye(4096, device="cuda")
        self._num_products = self._calibrated()
        self._marks: list[tuple[Any, Any]] = []
        self._begin: Any = None

    def start(self) -> None:
        """The clock begins here."""
        cuda.synchronize()
        self._begin = cuda.Event(enable_timing=True)
        self._begin.record()

    def block(self, number: int) -> torch.Tensor:
        """Begin a block of compute; at its end the result is filled with the number."""
        before, after = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
        before.record()
        self._multiply(self._num_products)
        result = torch.full((NUM_ELEMENTS,), float(number), device="cuda")
        after.record()
        self._marks.append((before, after))
        return result

    def timeline(self) -> Timeline:
        """When every block began and ended, in ms."""
        cuda.synchronize()
        return [(self._begin.elapsed_time(before), self._begin.elapsed_time(after)) for before, after in self._marks]

    def _multiply(self, count: int) -> None:
        for _ in range(count):
            self._matrix = self._matrix @ self._identity

    def _calibrated(self) -> int:
        """How many products make a block."""
        self._multiply(20)
        cuda.synchronize()
        start_s = time.perf_counter()
        self._multiply(20)
        cuda.synchronize()
        return max(1, round(20 * BLOCK_MS / 1e3 / (time.perf_counter() - start_s)))


class Host:
    """Blocks that are pauses, where there is no accelerator."""

    def __init__(self) -> None:
        self._marks: Timeline = []
        self._begin_s = 0.0

    def start(self) -> None:
        """The clock begins here."""
        self._begin_s = time.perf_counter()

    def block(self, number: int) -> torch.Tensor:
        """A block of compute; its result is filled with the number."""
        begin_ms = 1e3 * (time.perf_counter() - self._begin_s)
        time.sleep(BLOCK_MS / 1e3)
        self._marks.append((begin_ms, 1e3 * (time.perf_counter() - self._begin_s)))
        return torch.full((NUM_ELEMENTS,), float(number))

    def timeline(self) -> Timeline:
        """When every block began and ended, in ms."""
        return self._marks


def machine_of(device: str) -> Card | Host:
    """What computes."""
    return Card() if device == "cuda" else Host()


# Queues ---------------------------------------------------------------------------------------------------------------


def run_queues() -> Timeline:
    """Blocks of compute, each followed by a send that spins on another stream."""
    card, sends = Card(), cuda.Stream()
    cycles = round(SEND_MS / 1e3 * _cycles_per_s())
    card.start()
    for number in range(NUM_BLOCKS):
        card.block(number)
        sends.wait_stream(cuda.current_stream())
        with cuda.stream(sends):
            cuda._sleep(cycles)
    return card.timeline()


def _cycles_per_s() -> float:
    """How many cycles of the spinning kernel are a second."""
    cuda._sleep(10**6)
    cuda.synchronize()
    start_s = time.perf_counter()
    cuda._sleep(10**8)
    cuda.synchronize()
    return 1e8 / (time.perf_counter() - start_s)


# Transport ------------------------------------------------------------------------------------------------------------


def run_rank(rank: int, device: str, way: str, folder: Path) -> dict[str, Any]:
    """One end of a slow link: the first computes and sends, the second receives and checks."""
    store = FileStore(str(folder / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=TIMEOUT)
    group = private_group([0, 1], TIMEOUT)
    wires = {1: SlowWire(Link(service_s=SEND_MS / 1e3), one_queue=way == "in line")}
    with delayed_sends(wires if rank == 0 else {}):
        found = _send(device, way, group) if rank == 0 else _receive(device, group)
    dist.barrier()
    return found


def _send(device: str, way: str, group: Any) -> dict[str, Any]:
    machine, outgoing = machine_of(device), DelegateSender(group, 1, "the end of sending", TIMEOUT)
    outgoing.send([machine.block(0)])  # everything is used once before it is timed
    outgoing.flush()
    machine = machine_of(device)
    dist.barrier()
    machine.start()
    start_s = time.perf_counter()
    for number in range(NUM_BLOCKS):
        result = machine.block(number + 1)
        if way == "delegate":
            outgoing.send([result])
        else:
            dist.isend(result.cpu(), group=group, group_dst=1).wait()  # type: ignore[union-attr]
    launched_ms = 1e3 * (time.perf_counter() - start_s)
    outgoing.flush()
    return {"timeline": machine.timeline(), "launched": launched_ms, "sent": 1e3 * (time.perf_counter() - start_s)}


def _receive(device: str, group: Any) -> dict[str, Any]:
    """Whether every message held what it should."""
    incoming = DelegateReceiver(group, 0)
    buffers = [torch.zeros(NUM_ELEMENTS, device=device) for _ in range(NUM_BLOCKS + 1)]
    works = [incoming.receive([buffer])[0] for buffer in buffers]
    right = []
    for number, (work, buffer) in enumerate(zip(works, buffers, strict=True)):
        work.wait(TIMEOUT)
        if land := getattr(work, "land", None):
            land()
        right.append(bool((buffer == number).all()))
        if number == 0:
            dist.barrier()
    return {"right": right}


# All of it ------------------------------------------------------------------------------------------------------------


def run_part(arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    """A part of an experiment, in a process of its own: what it finds is the last line it prints."""
    command = [sys.executable, "-m", "benchmarks.training", "pipelines-gpu", *arguments]
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)


def found_by(part: subprocess.Popen[str]) -> Any:
    """What a part found."""
    said, _ = part.communicate(timeout=300)
    if part.returncode:
        raise SystemExit(f"a part ended with code {part.returncode}: {part.args!r}")
    return json.loads(said.splitlines()[-1])


def transport(device: str, way: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both ends of the slow link."""
    loopback = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"), "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        given = ["--device", device, "--way", way, "--folder", folder]
        parts = [run_part(["--rank", str(rank), *given], loopback) for rank in range(2)]
        first, second = map(found_by, parts)
    return first, second


def stall_ms(timeline: Timeline) -> float:
    """The longest time from the end of a block to the end of the next, beyond the shortest block."""
    shortest = min(end - begin for begin, end in timeline)
    return max(later[1] - before[1] for before, later in pairwise(timeline)) - shortest


def show(title: str, timeline: Timeline) -> float:
    """Print a timeline, and return by how much compute was held up."""
    stall = stall_ms(timeline)
    print(f"{title}\n    blocks end at (ms): {', '.join(f'{end:.0f}' for _, end in timeline)}")
    print(f"    longest hold-up of compute: {stall:.1f} ms\n")
    return stall


Checks = list[tuple[str, bool]]


def queues_part(device: str) -> Checks:
    """With one hardware queue compute waits, with many it does not."""
    checks = []
    for connections in (1, 32) if device == "cuda" else ():
        part = run_part(["--queues"], {"CUDA_DEVICE_MAX_CONNECTIONS": str(connections)})
        stall = show(f"queues: {connections} hardware queue(s), sends on a stream of their own", found_by(part))
        checks.append(stalled(f"{connections} hardware queue(s)", stall, waits=connections == 1))
    return checks


def transport_part(device: str) -> Checks:
    """In line compute waits, with the delegate it does not."""
    checks = []
    for way in ("in line", "delegate"):
        first, second = transport(device, way)
        stall = show(f"transport: {way}, one hardware queue; all sent after {first['sent']:.0f} ms", first["timeline"])
        checks.append(stalled(way, stall, waits=way == "in line"))
        checks.append((f"{way}: every message holds what was computed", all(second["right"])))
    return checks


def schedule_of_all(device: str) -> Checks:
    """The adaptive schedule beside stock ones."""
    loopback = {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        given = ["--device", device, "--folder", folder]
        ranks = range(schedule_part.NUM_RANKS)
        answers = [found_by(part) for part in [run_part(["--stage", str(rank), *given], loopback) for rank in ranks]]
    return schedule_part.report(device, answers)


def stalled(words: str, stall: float, *, waits: bool) -> tuple[str, bool]:
    """Whether compute waited as it should, or did not."""
    holds = stall > SEND_MS / 2 if waits else stall < MOST_STALL_SHARE * SEND_MS
    return f"{words}: compute {'waits' if waits else 'does not wait'} behind sends", holds


PARTS = {"queues": queues_part, "transport": transport_part, "schedule": schedule_of_all}


def measure(device: str, names: list[str]) -> int:
    """Run everything and check it."""
    name = cuda.get_device_name() if device == "cuda" else "no accelerator"
    print(f"torch {torch.__version__}, {name}; blocks of {BLOCK_MS:g} ms, sends of {SEND_MS:g} ms\n", flush=True)
    checks = [check for part in names for check in PARTS[part](device)]
    for words, holds in checks:
        print(f"{'holds ' if holds else 'FAILS '} {words}")
    return 0 if all(holds for _, holds in checks) else 1


def parse() -> argparse.Namespace:
    """Options; those of the parts are for the program itself."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if cuda.is_available() else "cpu")
    parser.add_argument("--part", default=",".join(PARTS), help=f"of {', '.join(PARTS)}, separated by commas")
    parser.add_argument("--queues", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--stage", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--way", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    """Run the parts that were asked for; ranks of a part run this again with options of their own."""
    options = parse()
    if options.queues:
        print(json.dumps(run_queues()))
    elif options.rank is not None:
        print(json.dumps(run_rank(options.rank, options.device, options.way, options.folder)))
    elif options.stage is not None:
        print(json.dumps(schedule_part.run_rank(options.stage, options.device, options.folder)), flush=True)
        os._exit(0)  # nothing is left to do, and other ranks may be gone
    else:
        return measure(options.device, options.part.split(","))
    return 0
