"""Watching one accelerator safely: `python -m benchmarks.training stragglers-capture [--shim FILE] [--runs 20]`.

Jobs of one rank with NCCL, each in processes of its own, unwatched, with the hook in Python, and with the shim before
NCCL. Safety: a CUDA graph captured while a collective is pending, torch.compile with `reduce-overhead`, and DDP in a
graph; every run must end, with the loss of an unwatched one. Messages: what is recorded of one of a gibibyte, against
events of the job itself. Cost: steps bound by the device and by the host, in alternating processes. Exit code 1 if a
check fails. Without CUDA, tiny jobs run with Gloo, and only the plumbing is tried.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from takeup.training.stragglers.contract import Operation
from takeup.training.stragglers.watch.ring import HeaderWord
from takeup.training.stragglers.watch.ring_reader import RingCollector

ROOT = Path(__file__).parents[2]
MODES = ("alone", "hook", "shim")
BARS = {"device": 0.003, "host": 0.02}
NUM_ROUNDS, NUM_STEPS, WARM_UP, NUM_BLOCKS = 5, 150, 30, 200
cuda: Any = torch.cuda
HAS_CUDA = torch.cuda.is_available()
DEVICE = "cuda" if HAS_CUDA else "cpu"


def be_a_job(mode: str, parts: str, folder: Path) -> None:
    """One rank: run the parts, and write what each found, or its error."""
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"  # as DDP in a graph requires
    if mode != "alone":
        from takeup.training.stragglers.watch import launch

        os.environ["TAKEUP_WATCH_FOLDER"] = str(folder)
        launch.attach("nccl" if HAS_CUDA else "gloo")
    dist.init_process_group("nccl" if HAS_CUDA else "gloo", rank=0, world_size=1, store=dist.HashStore())  # type: ignore[attr-defined]
    found: dict[str, Any] = {}
    for part in parts.split(","):
        try:
            found[part] = PARTS[part]()
        except Exception as error:
            found[part] = f"{type(error).__name__}: {error}".splitlines()[0]
    time.sleep(0.2)
    dist.all_reduce(torch.ones(16, device=DEVICE))  # the shim looks at events when a call comes
    (folder / "found.json").write_text(json.dumps(found), "utf-8")
    sys.stdout.flush()
    os._exit(0)


def synchronize() -> None:
    """Wait for the device."""
    if HAS_CUDA:
        cuda.synchronize()


# Safety ---------------------------------------------------------------------------------------------------------------


def capture() -> float:
    """A graph is captured while a collective is queued behind compute, in the default mode."""
    matrix = torch.full((4096 if HAS_CUDA else 64,) * 2, 1e-3, device=DEVICE)
    total = matrix @ matrix
    synchronize()
    for _ in range(50 if HAS_CUDA else 1):
        total = matrix @ total
    work = dist.all_reduce(total, async_op=True)
    time.sleep(0.02)
    if HAS_CUDA:
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            doubled = 2 * matrix
            time.sleep(0.3)  # several looks at the events of the call
        graph.replay()
        work.wait()
        synchronize()
        return float(doubled.sum())
    work.wait()
    return float(total.sum())


def compiled() -> float:
    """Training with DDP, compiled with reduce-overhead."""
    model, optimizer, data = _model(256, 3)
    step = torch.compile(model, mode="reduce-overhead" if HAS_CUDA else "default", backend="inductor")
    return _train(step, optimizer, data, 12 if HAS_CUDA else 1)


def ddp_graph() -> float:
    """DDP in a graph, by the recipe in PyTorch's documentation: warm-up on a side stream, capture, replay."""
    side = cuda.Stream() if HAS_CUDA else None
    with torch.cuda.stream(side):
        model, optimizer, data = _model(256, 3)
        loss = _train(model, optimizer, data, 11)
    if side is None:
        return loss
    graph, static = cuda.CUDAGraph(), data
    cuda.current_stream().wait_stream(side)
    optimizer.zero_grad(set_to_none=True)
    with cuda.graph(graph):
        out = model(static).square().mean()
        out.backward()
        optimizer.step()
    for _ in range(10):
        graph.replay()
    synchronize()
    return float(out)


def message() -> list[float]:
    """Seconds of a message of a gibibyte to itself by events of the job, and its size."""
    if not HAS_CUDA:
        return []
    sent = torch.ones(1 << 28, device=DEVICE)
    got = torch.empty_like(sent)
    group: Any = dist.distributed_c10d._get_default_group()
    times = []
    for _ in range(4):
        start, end = (cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        group._start_coalescing(torch.device(DEVICE))
        group.send([sent], 0, 0)
        group.recv([got], 0, 0)
        group._end_coalescing(torch.device(DEVICE)).wait()
        end.record()
        synchronize()
        times.append(1e-3 * start.elapsed_time(end))
        time.sleep(0.1)
    return times


# Cost -----------------------------------------------------------------------------------------------------------------


def device_bound() -> float:
    """Seconds of a step in which the device has some 100 ms of work."""
    model, optimizer, data = _model(8192 if HAS_CUDA else 32, 4, rows=4096 if HAS_CUDA else 8)
    return _step_s(model, optimizer, data, 20, 5)


def host_bound() -> float:
    """Seconds of a step of many small layers and seven buckets, bound by the host."""
    model, optimizer, data = _model(256, 40, bucket_mb=1.5)
    return _step_s(model, optimizer, data, NUM_STEPS if HAS_CUDA else 3, WARM_UP)


def switched() -> list[float]:
    """The same step in one process, recorded and not recorded in turn, in blocks: the seconds of both."""
    model, optimizer, data = _model(256, 40, bucket_mb=1.5)
    _train(model, optimizer, data, WARM_UP)
    from takeup.training.stragglers.watch.hook import current

    hook, times = current(), (list[float](), list[float]())
    assert hook is not None
    ring: Any = hook.ring
    for number in range(NUM_BLOCKS if HAS_CUDA else 2):
        ring.words[HeaderWord.IS_OFF] = number % 2
        times[number % 2].append(_block_s(model, optimizer, data, 10))
    return [median(each) for each in times]


def _step_s(model: Any, optimizer: Any, data: Any, num_steps: int, warm_up: int) -> float:
    """The median over blocks of steps, each from one synchronization to the next."""
    _train(model, optimizer, data, warm_up)
    times = []
    for _ in range(10):
        times.append(_block_s(model, optimizer, data, max(1, num_steps // 10)))
    return median(times)


def _block_s(model: Any, optimizer: Any, data: Any, num_steps: int) -> float:
    synchronize()
    began_s = time.perf_counter()
    for _ in range(num_steps):
        _one_step(model, optimizer, data)
    synchronize()
    return (time.perf_counter() - began_s) / num_steps


def _model(width: int, num_layers: int, rows: int = 32, bucket_mb: float = 25.0) -> tuple[Any, Any, Any]:
    torch.manual_seed(1)
    layers = [torch.nn.Linear(width, width) for _ in range(num_layers)]
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*layers).to(DEVICE), bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, foreach=True)
    return model, optimizer, torch.randn(rows, width, device=DEVICE)


def _one_step(model: Any, optimizer: Any, data: Any) -> Any:
    optimizer.zero_grad()
    loss = model(data).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def _train(model: Any, optimizer: Any, data: Any, num_steps: int) -> float:
    loss = torch.zeros(())
    for _ in range(num_steps):
        loss = _one_step(model, optimizer, data)
    return float(loss)


PARTS: dict[str, Callable[[], Any]] = {
    "capture": capture,
    "compiled": compiled,
    "ddp_graph": ddp_graph,
    "message": message,
    "device": device_bound,
    "host": host_bound,
    "switched": switched,
}
SAFETY = ("capture", "compiled", "ddp_graph")


# The runs -------------------------------------------------------------------------------------------------------------


def run_job(mode: str, parts: str, shim: Path | None) -> dict[str, Any]:
    """What the job found; its errors; calls recorded, calls captured, and the durations of large messages."""
    with tempfile.TemporaryDirectory() as name:
        added = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        if mode == "shim":
            added |= {"LD_PRELOAD": str(shim), "TAKEUP_WATCH_FOLDER": name, "TAKEUP_WATCH_SHIM": "1"}
        command = [sys.executable, "-m", "benchmarks.training", "stragglers-capture", "--job", mode, parts, name]
        ran = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **added}, check=False, capture_output=True, text=True, timeout=150
        )
        path = Path(name, "found.json")
        found = json.loads(path.read_text("utf-8")) if path.exists() else {}
        found["error"] = "" if path.exists() else (ran.stderr.strip().splitlines() or ["died"])[-1]
        found["warned"] = "no longer watches" in ran.stderr
        gather = RingCollector(Path(name))
        gather.poll()
        if gather.readers:
            calls = gather.readers[0].read(give_up_before_ns=1 << 62)
            large = calls[(calls["operation"] >= Operation.SEND) & (calls["size_bytes"] >= 1 << 30)]
            found["message_s"] = [float(each) for each in (large["ended_ns"] - large["began_ns"]) * 1e-9]
            found |= {"calls": len(calls), "ended": int((calls["ended_ns"] > 0).sum())}
            found["steps"] = int((calls["operation"] == Operation.STEP).sum())
            found["captured"] = int(gather.readers[0].word(8))
        return found


def safety(
    modes: tuple[str, ...], num_runs: int, shim: Path | None, together: int, safe: tuple[str, ...] = SAFETY
) -> list[bool]:
    """Every part ends in every run, with the result of an unwatched one."""
    with ThreadPoolExecutor(together) as pool:
        parts = ",".join((*safe, "message"))
        numbers = {mode: min(4, num_runs) if mode == "alone" else num_runs for mode in modes}
        runs = {
            mode: [pool.submit(run_job, mode, parts, shim) for _ in range(number)] for mode, number in numbers.items()
        }
        found = {mode: [each.result() for each in jobs] for mode, jobs in runs.items()}
    held = []
    for part in safe:
        alone = next((run[part] for run in found[modes[0]] if not isinstance(run.get(part), str)), None)
        for mode in modes:
            good = [run for run in found[mode] if _is_same(run.get(part), alone)]
            errors = sorted({str(run.get(part, run["error"])) for run in found[mode] if run not in good})
            held.append(
                check(f"{mode}: {part}", len(good) == numbers[mode], f"{len(good)} of {numbers[mode]} {errors[:2]}")
            )
    for mode in modes[1:]:
        last = found[mode][-1]
        print(mode, {name: last.get(name) for name in ("calls", "ended", "steps", "captured", "message", "message_s")})
        held.append(check(f"{mode}: on to the end", not any(run["warned"] for run in found[mode]), "no warning"))
        held += _message_checks(mode, last)
    return held


def _is_same(value: Any, wanted: Any) -> bool:
    return isinstance(value, float) and isinstance(wanted, float) and abs(value - wanted) <= 1e-6 * abs(wanted) + 1e-9


def _message_checks(mode: str, run: dict[str, Any]) -> list[bool]:
    taken_s, recorded_s = run.get("message"), [each for each in run.get("message_s", []) if each > 0]
    if not taken_s or isinstance(taken_s, str):
        return [check(f"{mode}: messages", not HAS_CUDA, str(taken_s))]
    ratio = median(recorded_s) / median(taken_s) if recorded_s else 0.0
    words = f"{1e3 * median(recorded_s or [0.0]):.3f} ms recorded, {1e3 * median(taken_s):.3f} ms by events of the job"
    return [check(f"{mode}: a message is timed where it runs", 0.7 < ratio < 1.3, words)]


def cost(modes: tuple[str, ...], shim: Path | None, num_rounds: int, until_s: float) -> list[bool]:
    """Steps alone and watched, in alternating processes, until the time is over."""
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    parts = list(BARS) if "alone" in modes else []
    for _ in range(num_rounds):
        began_s = time.monotonic()
        for mode in modes:
            found[mode].append(run_job(mode, ",".join([*parts, *["switched"] * (mode == "shim")]), shim))
        if 2 * time.monotonic() - began_s > until_s:
            break
    held = []
    for part in parts if num_rounds else []:
        bar = BARS[part]
        taken = {mode: [run.get(part) for run in runs] for mode, runs in found.items()}
        times = {mode: sorted(each for each in these if isinstance(each, float)) for mode, these in taken.items()}
        for mode in modes:
            print(f"{part:7} {mode:6} ms a step by process:", *(f"{1e3 * each:.4f}" for each in times[mode]))
        for mode in modes[1:]:
            added = min(times[mode]) / min(times["alone"]) - 1, median(times[mode]) / median(times["alone"]) - 1
            words = f"{added[0]:+.2%} by the fastest processes, {added[1]:+.2%} by medians; at most {bar:.1%}"
            if mode == "hook" or part == "device":
                held.append(check(f"{mode}: cost of a step bound by the {part}", max(added) <= bar, words))
    for run in found.get("shim", []):
        on_s, off_s = run["switched"]
        words = f"{1e3 * on_s:.4f} ms recorded, {1e3 * off_s:.4f} ms not, in turn: {on_s / off_s - 1:+.2%}"
        held.append(check("shim: cost of a step bound by the host", on_s / off_s - 1 <= BARS["host"], words))
    for mode in modes[1:]:
        last = found[mode][-1] if found[mode] else {}
        print(mode, {name: last.get(name) for name in ("calls", "ended", "steps", "captured")})
    return held


def check(name: str, holds: bool, words: str) -> bool:
    """Print one check."""
    print(f"{'ok  ' if holds else 'FAIL'} {name}: {words}", flush=True)
    return holds


def main() -> int:
    """All jobs, and all checks; what the hook in Python costs is told, the shim must hold the bars."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--job", nargs=3, metavar=("MODE", "PARTS", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--shim", type=Path, help="the compiled shim")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--safe", default=",".join(SAFETY), help="parts of the runs for safety")
    parser.add_argument("--modes", default="", help="of alone, hook, shim; all if absent")
    parser.add_argument("--rounds", type=int, default=NUM_ROUNDS)
    parser.add_argument("--seconds", type=float, default=600.0, help="no further round of the costs begins after this")
    parser.add_argument("--together", type=int, default=8, help="processes at a time in the runs for safety")
    options = parser.parse_args()
    if options.job:
        be_a_job(options.job[0], options.job[1], Path(options.job[2]))
    began_s = time.monotonic()
    name = cuda.get_device_name() if HAS_CUDA else "no CUDA: Gloo on the host"
    print(name, "torch", torch.__version__, "NCCL", cuda.nccl.version() if HAS_CUDA else None)
    modes = tuple(options.modes.split(",")) if options.modes else MODES if options.shim else MODES[:2]
    held = safety(modes, options.runs, options.shim, options.together, tuple(options.safe.split(",")))
    print(f"safety took {time.monotonic() - began_s:.0f} s", flush=True)
    held += cost(modes, options.shim, options.rounds, began_s + options.seconds)
    print(f"all took {time.monotonic() - began_s:.0f} s; {sum(held)} of {len(held)} checks hold")
    return 0 if all(held) else 1
