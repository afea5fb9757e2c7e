"""The part `shim` of benchmarks/training/stragglers.py: what the shim before NCCL adds to a call, in processor time.

A library that does nothing stands for NCCL, and a small program for the job, so that what
remains is the cost of noting. Events of CUDA cost nothing here; a call that is timed also costs two of them. Needs a C
compiler.
"""

from __future__ import annotations

import os
import subprocess
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from takeup.core.report import Cell, Check, Column, Table

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "tests" / "training" / "stragglers" / "watch" / "native"
NUM_CALLS, NUM_ROUNDS = 200_000, 7
MOST_CALL_US = 1.0


def shim(tick: Callable[[], object], options: Namespace) -> tuple[list[Table], list[Check]]:
    """Processor time of a call alone and noted; the best of several runs of each."""
    with TemporaryDirectory(prefix="takeup-shim-") as name:
        folder = Path(name)
        _build(folder)
        alone_ns = _call_ns(folder, None)
        noted_ns = {every: _call_ns(folder, every) for every in (0, 16, 1)}
    tick()
    names = {0: "noted", 16: "noted, every 16th timed", 1: "noted, all timed"}
    rows: list[tuple[Cell, ...]] = [(names[every], alone_ns, each, each - alone_ns) for every, each in noted_ns.items()]
    columns = (Column("call"), *(Column(title, "ns", 1) for title in ("alone", "with the shim", "added")))
    worst_us = (max(noted_ns.values()) - alone_ns) / 1e3
    note = f"an all-reduce of a library that does nothing, {NUM_CALLS:,} times; the best of {NUM_ROUNDS}"
    return [Table("What the shim adds to a call", columns, tuple(rows), note)], [
        Check.at_most("what the shim adds to a call, at most", worst_us, MOST_CALL_US, unit="us")
    ]


def _build(folder: Path) -> None:
    library = ["-shared", "-fPIC", "-Wl,-soname,libnccl.so.2", "-o", f"{folder}/libnccl.so.2", f"{NATIVE}/fake_nccl.c"]
    program = ["-rdynamic", "-O2", "-o", f"{folder}/job", f"{NATIVE}/fake_job.c", "-ldl"]
    commands = ([f"{ROOT}/native/nccl-shim/build", f"{folder}/shim.so"], ["cc", *library], ["cc", *program])
    for command in commands:
        subprocess.run(command, check=True, capture_output=True)


def _call_ns(folder: Path, every: int | None) -> float:
    """Processor time of a call, with the shim if it is said which calls are timed."""
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "4", "TAKEUP_WATCH_FOLDER": str(folder)}
    if every is not None:
        environment |= {"LD_PRELOAD": str(folder / "shim.so"), "TAKEUP_SHIM_TIME_EVERY": str(every)}
    command = [f"{folder}/job", "many", str(NUM_CALLS), f"{folder}/libnccl.so.2"]
    ran = [
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True) for _ in range(NUM_ROUNDS)
    ]
    return min(float(each.stdout.split()[0]) for each in ran)
