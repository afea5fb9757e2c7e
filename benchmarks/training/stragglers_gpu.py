"""Watching NCCL on one accelerator: `python -m benchmarks.training stragglers-gpu [--shim FILE]`.

A job of one rank with NCCL, in processes of its own: alone, with the hook in the dispatcher, and with the shim before
NCCL. Checked: that calls of Python and of the C++ reducer of DDP are noted; that events of the device tell when calls
began and ended, without synchronising; what noting costs. Exit code 1 if a check fails. Without CUDA it runs with Gloo
on the host and leaves the shim out.

The shim is compiled if there is a C compiler, or given with --shim.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from takeup.training.stragglers.contract import CallLog, Operation
from takeup.training.stragglers.watch.ring_reader import RingCollector

ROOT = Path(__file__).parents[2]
NUM_CALLS, NUM_STEPS, WARM_UP = 2_000, 20, 200
MOST_SHARE, STEP_S, CALLS_OF_STEP = 0.005, 0.5, 40  # of an iteration of so long, with so many calls
cuda: Any = torch.cuda  # whose functions are not annotated


# The job --------------------------------------------------------------------------------------------------------------


def be_a_job(mode: str, folder: Path) -> None:
    """One rank: calls in a row, calls behind compute, training with DDP."""
    if mode == "hook":
        from takeup.training.stragglers.watch.hook import install

        hook = install(folder)
    device = "cuda" if cuda.is_available() else "cpu"
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("nccl" if device == "cuda" else "gloo", store=store, rank=0, world_size=1)
    found: dict[str, Any] = {"call_us": call_us(device), "behind_s": behind_compute_s(device), "loss": train(device)}
    synchronize(device)
    time.sleep(0.2)  # what looks at events does so now and then
    if mode == "hook":
        found["is_off"] = hook.is_off
        from takeup.training.stragglers.watch import pause

        found["gemm"] = pause._compute({"size": 2048, "repeats": 3})
    else:
        dist.all_reduce(torch.ones(16, device=device))  # the shim looks at events when a call comes
    (folder / "found.json").write_text(json.dumps(found), "utf-8")
    dist.destroy_process_group()


def synchronize(device: str) -> None:
    """Wait for the device, if it is one of its own."""
    if device == "cuda":
        cuda.synchronize()


def call_us(device: str) -> float:
    """Processor time of one all-reduce, the best of a few rounds."""
    tensor = torch.ones(256, device=device)
    rounds = []
    for _ in range(5):
        start_s = time.process_time()
        for _ in range(NUM_CALLS // 5):
            dist.all_reduce(tensor)
        rounds.append((time.process_time() - start_s) / (NUM_CALLS // 5))
        synchronize(device)
    return 1e6 * min(rounds)


def behind_compute_s(device: str) -> float:
    """How long a reduction of a size of its own is queued behind compute, by events of the job itself."""
    if device == "cpu":
        dist.all_reduce(torch.ones(777))
        return 0.0
    matrix = torch.full((8192, 8192), 0.5, device=device)
    torch.mm(matrix, matrix)
    synchronize(device)
    start, end = (cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(10):
        torch.mm(matrix, matrix)
    end.record()
    dist.all_reduce(torch.ones(777, device=device))
    synchronize(device)
    return 1e-3 * float(start.elapsed_time(end))


def train(device: str) -> float:
    """A few steps with DDP."""
    torch.manual_seed(1)
    layers = (torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).to(device), bucket_cap_mb=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in range(NUM_STEPS):
        optimizer.zero_grad()
        loss = model(torch.ones(8, 512, device=device)).square().mean()
        torch.autograd.backward(loss)
        optimizer.step()
    return float(loss.item())


# What came of it ------------------------------------------------------------------------------------------------------


def run_job(mode: str, folder: Path, shim: Path | None) -> tuple[dict[str, Any], CallLog | None]:
    """What the job found, and the calls that were noted."""
    folder.mkdir()
    added = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    if mode == "shim":
        added |= {"LD_PRELOAD": str(shim), "TAKEUP_WATCH_FOLDER": str(folder), "TAKEUP_WATCH_SHIM": "1"}
    command = [sys.executable, "-m", "benchmarks.training", "stragglers-gpu", "--job", mode, str(folder)]
    ran = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **added}, check=False, capture_output=True, text=True, timeout=120
    )
    if ran.returncode:
        raise SystemExit(f"the job ({mode}) failed:\n{ran.stderr}")
    gather = RingCollector(folder)
    gather.poll()
    log = gather.read()[0] if gather.readers else None
    return json.loads((folder / "found.json").read_text("utf-8")), log


def compiled(folder: Path) -> Path | None:
    """The shim, if there is a compiler."""
    if shutil.which("cc") is None:
        return None
    path = folder / "libtakeup-nccl.so"
    subprocess.run([str(ROOT / "native" / "nccl-shim" / "build"), str(path)], check=True)
    return path


def reductions(log: CallLog, size_bytes: int | None = None) -> Any:
    """All-reduces, of one size."""
    calls = log.calls[log.calls["operation"] == Operation.ALL_REDUCE]
    return calls if size_bytes is None else calls[calls["size_bytes"] == size_bytes]


def check(name: str, holds: bool, words: str) -> bool:
    """Print one check."""
    print(f"{'ok  ' if holds else 'FAIL'} {name}: {words}")
    return holds


def check_log(mode: str, log: CallLog | None, found: dict[str, Any], alone: dict[str, Any]) -> list[bool]:
    """What must hold of the calls that were noted in one way."""
    if log is None:
        return [check(mode, False, "no ring was written")]
    small = reductions(log, 1_024)
    ended = log.calls["ended_ns"] > 0
    last_s = (log.calls["ended_ns"] - log.calls["began_ns"])[ended] * 1e-9
    buckets = log.calls[log.calls["size_bytes"] > 100_000]
    added_us = found["call_us"] - alone["call_us"]
    share = CALLS_OF_STEP * added_us / 1e6 / STEP_S
    return [
        check(f"{mode}: calls of Python", len(small) == NUM_CALLS, f"{len(small)} of {NUM_CALLS} noted"),
        check(
            f"{mode}: calls of DDP", len(buckets) >= NUM_STEPS, f"{len(buckets)} large reductions, {NUM_STEPS} steps"
        ),
        check(f"{mode}: numbers", bool((np.diff(np.sort(small["number"])) == 1).all()), "without gaps"),
        check(f"{mode}: ends", bool(ended.sum() >= len(log.calls) // 20), f"{ended.mean():.0%} of calls have one"),
        check(f"{mode}: durations", bool((last_s < 1.0).all()), f"median {1e6 * np.median(last_s):.1f} us"),
        check(f"{mode}: same result", found["loss"] == alone["loss"], f"loss {found['loss']:.6f}"),
        check(
            f"{mode}: cost",
            share <= MOST_SHARE,
            f"{added_us:.1f} us a call, {share:.2%} of {STEP_S} s with {CALLS_OF_STEP}",
        ),
    ]


def check_hook(log: CallLog | None, found: dict[str, Any]) -> list[bool]:
    """What only the hook has: times of the device."""
    if log is None or not found["behind_s"]:
        return []
    behind = reductions(log, 777 * 4)
    lasted_s = 1e-9 * float(behind["ended_ns"][0] - behind["began_ns"][0])
    words = f"{1e3 * lasted_s:.2f} ms, after {1e3 * found['behind_s']:.1f} ms of compute in the same stream"
    return [
        check(
            "hook: a call queued behind compute lasts from when it is reached",
            lasted_s < 0.5 * found["behind_s"],
            words,
        ),
        check("hook: still on", not found["is_off"], f"product of matrices in the pause test: {found['gemm']}"),
    ]


def main() -> int:
    """All jobs, and all checks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--job", nargs=2, metavar=("MODE", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--shim", type=Path, help="the compiled shim")
    options = parser.parse_args()
    if options.job:
        be_a_job(options.job[0], Path(options.job[1]))
        return 0
    print(
        cuda.get_device_name() if cuda.is_available() else "no CUDA here: Gloo on the host", "torch", torch.__version__
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        alone, _ = run_job("alone", folder / "alone", None)
        found, log = run_job("hook", folder / "hook", None)
        held = check_log("hook", log, found, alone) + check_hook(log, found)
        shim = options.shim or (compiled(folder) if cuda.is_available() else None)
        if shim is None:
            print("the shim is left out: no CUDA, or no C compiler and no --shim")
        else:
            found, log = run_job("shim", folder / "shim", shim)
            held += check_log("shim", log, found, alone)
    return 0 if all(held) else 1
