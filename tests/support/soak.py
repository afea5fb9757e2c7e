"""Long runs: a server, a Slurm controller with churn, a Spark driver and a watched job, and how they grow.

Every few seconds the memory, descriptors and threads of each program and the files of its folder are sampled. The table
has their slopes in ten minutes after a third of the time, in which caches fill. Stock Spark runs at the same time, and
ours may not grow more.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from takeup.core.clock import Clock

Floats = npt.NDArray[np.float64]

TESTS = Path(__file__).parents[1]
EVERY_S = 5.0
WARM_SHARE = 1 / 3
MEASURES = ("memory (MB)", "descriptors", "threads", "files")
MOST = 1.0  # of each, in ten minutes
STOCK = {"Spark driver": "stock Spark driver"}  # what may grow by itself
QUIET = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "GLOO_SOCKET_IFNAME": "lo"}


# What runs ------------------------------------------------------------------------------------------------------------


def serve(folder: Path) -> None:
    """`takeup serve` under generations, a wrong key and adapters that come and go: this process is the client."""
    import httpx

    options = ("--port", "0", "--uploads", str(folder / "uploads"))
    program = [sys.executable, "-m", "takeup", "serve", "takeup/tiny-sd15", *options]
    with (folder / "log").open("w") as log, subprocess.Popen(program, stdout=subprocess.PIPE, stderr=log) as process:
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        with httpx.Client(base_url=address, timeout=120) as client:
            for number in count():
                fields = {"prompt": f"cat {number}", "size": "32x32", "steps": 2, "seed": number}
                client.post("/v1/images/generations", json=fields).raise_for_status()
                client.post("/v1/images/generations", content=b"{" * (number % 500))
                client.post("/v1/adapters", files={"file": ("x.safetensors", os.urandom(4000))}, data={"name": "x"})
                time.sleep(0.2)


def slurm(folder: Path) -> None:
    """The controller of Slurm over a Slurm in memory, after a process that compiles the passes has ended."""
    from takeup.core.clock import VirtualClock, WallClock

    if (compiling := os.fork()) == 0:
        control_jobs(folder / "compiling", VirtualClock(), 20.0)
        os._exit(0)
    os.waitpid(compiling, 0)
    control_jobs(folder, WallClock(), None)


def control_jobs(folder: Path, clock: Clock, until_s: float | None) -> None:
    """Jobs come and go, a day passes in five minutes, and the journal is shortened."""
    from cluster.engines.slurm.fake_slurm import FakeSlurm
    from takeup.cluster.contract import StaticQuota
    from takeup.cluster.engines.slurm import SlurmEngine, journal
    from takeup.cluster.engines.slurm.commands import Slurm
    from takeup.cluster.policies import find_policy
    from takeup.core.control import ControlLoop

    journal.MOST_LINES = 2000
    fake, draw, numbers = FakeSlurm(num_nodes=8), random.Random(1), count(1)
    engine = SlurmEngine(folder / "journal", slurm=Slurm(fake), wall=lambda: fake.now_s, monotonic=lambda: fake.now_s)

    def churn() -> None:
        fake.tick(30.0)
        fake.commands.clear()
        fake.changes.clear()
        for name, row in list(fake.jobs.items()):
            if row["job_state"] == "RUNNING" and draw.random() < 0.02:
                del fake.jobs[name]
        while len(fake.jobs) < 30:
            number = next(numbers)
            fresh = FakeSlurm(now_s=fake.now_s)
            row = fresh.jobs[fresh.submit(draw.choice(("hp", "spot", "spot")), draw.choice((1, 2, 8)))]
            fake.jobs[str(number)] = row | {"job_id": number}
        clock.after(0.1, churn)

    scheduler = find_policy("gfs", StaticQuota(0.5))
    ControlLoop(clock, engine, scheduler, 0.1, on_problem=lambda _: None).start()
    clock.after(0.0, churn)
    clock.run(until_s)


def spark(folder: Path, *, is_stock: bool = False) -> None:
    """A driver whose jobs persist, read and unpersist; its JVM is measured with it.

    Heap, pools of threads, compiler and allocator are bounded, so that they are full soon.
    """
    from pyspark.sql import SparkSession

    from takeup.caching.engines.spark import configure

    builder = SparkSession.builder.master("local[2]").appName("soak")
    os.environ["MALLOC_ARENA_MAX"] = "1"
    whole = "-XX:+UseSerialGC -Xms600m -XX:+AlwaysPreTouch -XX:TieredStopAtLevel=1"
    small = {"spark.ui.enabled": "false", "spark.driver.memory": "600m", "spark.local.dir": str(folder)}
    small |= {"spark.driver.extraJavaOptions": whole, "spark.ui.showConsoleProgress": "false"}
    small["spark.cleaner.periodicGC.interval"] = "20s"
    pools = ("shuffleExchange", "broadcastExchange", "resultQueryStage")
    small |= {f"spark.sql.{pool}.maxThreadThreshold": "8" for pool in pools}
    for key, value in small.items():
        builder = builder.config(key, value)
    session = (builder if is_stock else configure(builder)).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    while True:
        numbers = session.range(20_000).repartition(4).cache()
        squares = numbers.selectExpr("id * id as square").cache()
        numbers.join(squares, numbers.id == squares.square).count()
        squares.count()
        squares.unpersist()
        numbers.unpersist()
        time.sleep(0.5)


def watch(folder: Path) -> None:
    """A job of two machines that reduces, watched by a listener on whose port strangers knock."""
    token = {"TAKEUP_WATCH_TOKEN": "a secret", **QUIET, "REDUCING_MEETING": str(folder / "meeting")}
    job = [
        sys.executable,
        str(TESTS / "training/stragglers/watch/reducing_job.py"),
        str(10**8),
        "0.05",
    ]
    program = [sys.executable, "-m", "takeup", "training", "watch"]

    def machine(rank: int, *words: str) -> subprocess.Popen[str]:
        place = {**os.environ, **token, "RANK": str(rank), "WORLD_SIZE": "2"}
        return subprocess.Popen([*program, *words, "--", *job], env=place, stderr=subprocess.PIPE, text=True)

    with machine(0, "--listen", "127.0.0.1:0") as first:
        assert first.stderr is not None
        address = first.stderr.readline().rpartition(" ")[2].strip()
        with machine(1, "--report-to", address) as second:
            threading.Thread(target=knock, args=(address,), daemon=True).start()
            for process in (second, first):
                process.communicate()


def knock(address: str) -> None:
    """Strangers that greet wrongly, half, or not at all."""
    import socket
    from contextlib import suppress

    host, _, port = address.rpartition(":")
    while True:
        with suppress(OSError), socket.create_connection((host, int(port))) as stranger:
            stranger.sendall(os.urandom(random.choice((0, 5, 64, 4000))))
        time.sleep(0.1)


SOAKS: Mapping[str, tuple[Callable[[Path], None], str]] = {
    "server": (serve, "takeup serve"),
    "Slurm controller": (slurm, ""),
    "Spark driver": (spark, ""),
    "stock Spark driver": (partial(spark, is_stock=True), ""),
    "watch": (watch, "--listen"),
}


# How it grows ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Growth:
    """Samples of one program: seconds, and the measures."""

    name: str
    process: subprocess.Popen[bytes]
    folder: Path
    part: str  # words in the command of the process that is measured; the one that was started without them
    samples: list[tuple[float, ...]] = field(default_factory=list)
    is_alive: bool = False  # at the end

    def sample(self, now_s: float) -> None:
        """Look once; programs that are starting or ending are left out."""
        found = [pid for pid in _family(self.process.pid) if self.part in _command(pid)]
        pids = found[:1] if self.part else found
        try:
            memory = sum(_memory_mb(pid) for pid in pids)
            counted = [sum(len(list(Path(f"/proc/{pid}/{what}").iterdir())) for pid in pids) for what in ("fd", "task")]
        except (OSError, ValueError):
            return
        files = sum(len(names) for _, _, names in os.walk(self.folder))
        if pids:
            self.samples.append((now_s, memory, *counted, files))

    def late(self, minutes: float) -> Floats:
        """Samples after caches have filled, medians of three: a JVM that starts a program counts twice for a moment."""
        rows = np.array(self.samples)
        if len(rows) < 3:
            return rows
        medians: Floats = np.median(np.lib.stride_tricks.sliding_window_view(rows, 3, axis=0), axis=-1)
        return medians[medians[:, 0] > 60 * minutes * WARM_SHARE]

    def slopes(self, minutes: float) -> Floats:
        """How much each measure grows in ten minutes."""
        late = self.late(minutes)
        return 600 * np.polyfit(late[:, 0], late[:, 1:], 1)[0] if len(late) > 1 else np.full(len(MEASURES), np.inf)

    def row(self, minutes: float, allowed: Floats) -> tuple[str, bool]:
        """A line of the table, and whether the program grows no more than is allowed."""
        late, slopes = self.late(minutes), self.slopes(minutes)
        if not np.isfinite(slopes).all():
            return f"| {self.name} | {len(late)} | it ended early |  |  |  | NO |", False
        cells = [f"{late[-1, place]:.0f} ({slope:+.2f})" for place, slope in enumerate(slopes, start=1)]
        waves = late[:, -1].std() * 600 / (late[-1, 0] - late[0, 0])  # files come and go with Spark's collections
        most = np.maximum(allowed, 0) + np.array([MOST, MOST, MOST, max(MOST, float(waves))])
        holds = self.is_alive and bool((slopes < most).all())
        return f"| {self.name} | {len(late)} | {' | '.join(cells)} | {'yes' if holds else 'NO'} |", holds


def _family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for parent in found:
        try:
            tasks = Path(f"/proc/{parent}/task").glob("*/children")
            found += [int(child) for task in tasks for child in task.read_text().split()]
        except OSError:
            continue
    return found


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _memory_mb(pid: int) -> float:
    """The private and shared memory of a process, without pages of files that it has mapped."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    return 0.0  # it has ended, and its parent does not know yet


def main() -> None:
    """Run the soaks side by side and print the table; a program that grows is exit code 1."""
    parser = argparse.ArgumentParser(prog="python -m support.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--only", default="", help="names with commas")
    parser.add_argument("--samples", default="", help="a JSON file for all samples")
    parser.add_argument("--work", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.work:
        SOAKS[asked.work][0](asked.folder)
        return
    with tempfile.TemporaryDirectory(prefix="takeup-soak-") as name:
        grown = [_started(each, Path(name)) for each in SOAKS if not asked.only or each in asked.only.split(",")]
        began_s = time.monotonic()
        while time.monotonic() - began_s < 60 * asked.minutes:
            for it in grown:
                it.sample(time.monotonic() - began_s)
            time.sleep(EVERY_S)
        if asked.samples:
            Path(asked.samples).write_text(json.dumps({it.name: it.samples for it in grown}), "utf-8")
        for it in grown:
            it.is_alive = it.process.poll() is None
            os.killpg(it.process.pid, signal.SIGTERM)
            it.process.wait()
    print(f"| program | samples | {' | '.join(MEASURES)} | flat |\n| --- | --- |{' --- |' * len(MEASURES)} --- |")
    slopes = {it.name: it.slopes(asked.minutes) for it in grown}
    rows = {it.name: it.row(asked.minutes, slopes.get(STOCK.get(it.name, ""), np.zeros(len(MEASURES)))) for it in grown}
    print("\n".join(row for row, _ in rows.values()))
    print("\nIn brackets: the slope in ten minutes, after a third of the time. Ours on Spark: at most that of stock.")
    sys.exit(not all(holds for name, (_, holds) in rows.items() if name not in STOCK.values()))


def _started(name: str, folder: Path) -> Growth:
    own = folder / name.replace(" ", "-")
    own.mkdir()
    words = ["--work", name, "--folder", str(own)]
    process = subprocess.Popen(
        [sys.executable, "-m", "support.soak", *words], env={**os.environ, **QUIET}, start_new_session=True
    )
    return Growth(name, process, own, SOAKS[name][1])


if __name__ == "__main__":
    main()
