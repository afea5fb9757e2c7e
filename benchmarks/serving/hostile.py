"""A server under attack: `python -m benchmarks.serving hostile [--connections 1000]`.

A server of the tiny SDXL runs in a separate process. Tenant *bob* sends requests one after the other: first alone, then
while hostile clients hold connections open without a complete request, and tenant *alice* floods the queue with 64
concurrent requests. Compared are bob's latencies and images (equal but for rounding), and the memory of the server. At
the end the server receives SIGTERM in the middle of the flood. Times are of this machine, which also sends the
requests. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import asyncio
import base64
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
from PIL import Image

from benchmarks.support.dated import options_of, publish, versions
from takeup.core.report import Check, Column, Report, Table

MODEL, GRACE_S, NUM_FLOODING = "takeup/tiny-sdxl", 5.0, 64
KEYS = {"alice": "alice-has-a-long-key", "bob": "bob-has-another-long-key"}
P95_SHARE, STOP_S, ROUNDING = 1.1, 2.0, 1
FLAT_BYTES = 64 * 2**20
HALF_A_REQUEST = b"POST /v1/images/generations HTTP/1.1\r\nHost: "
Pixels = npt.NDArray[np.int16]


@dataclass(frozen=True)
class Answers:
    """What bob got: seconds and images."""

    seconds: Sequence[float]
    images: Sequence[Pixels]

    def percentile_ms(self, percent: float) -> float:
        return float(1000 * np.percentile(self.seconds, percent))


@contextmanager
def server(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    keys = folder / "keys.txt"
    keys.write_text("".join(f"{tenant}:{key}\n" for tenant, key in KEYS.items()))
    command = ["serve", MODEL, "--port", "0", "--keys", str(keys), "--grace", str(GRACE_S)]
    process = subprocess.Popen(
        [sys.executable, "-m", "takeup", *command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()


async def generate(client: httpx.AsyncClient, tenant: str, seed: int) -> httpx.Response:
    body = {"prompt": "a cat", "size": "32x32", "steps": 6, "seed": seed}
    headers = {"Authorization": f"Bearer {KEYS[tenant]}"}
    return await client.post("/v1/images/generations", json=body, headers=headers)


async def requests_of_bob(client: httpx.AsyncClient, num_requests: int) -> Answers:
    seconds, images = [], []
    for seed in range(num_requests):
        began_s = time.perf_counter()
        answer = await generate(client, "bob", seed)
        seconds.append(time.perf_counter() - began_s)
        images.append(pixels(answer.json()["data"][0]["b64_json"]))
    return Answers(seconds, images)


def pixels(text: str) -> Pixels:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(text))), np.int16)


async def flood(client: httpx.AsyncClient, number: int) -> None:
    while True:
        status = 0
        with suppress(httpx.HTTPError):
            status = (await generate(client, "alice", 10_000 + number)).status_code
        if status != 200:
            await asyncio.sleep(0.2)


async def hold(host: str, port: int) -> None:
    """A connection that never sends a complete request, opened again whenever it is closed."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(HALF_A_REQUEST)
            await reader.read()
            writer.close()
        await asyncio.sleep(0.5)


def resident_bytes(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


async def measured(process: Any, url: str, num_connections: int, num_requests: int) -> tuple[Any, ...]:
    limits = httpx.Limits(max_connections=None)
    parts = httpx.URL(url)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as client:
        await requests_of_bob(client, 5)  # warm-up
        alone = await requests_of_bob(client, num_requests)
        hostile = [asyncio.create_task(hold(parts.host, parts.port or 0)) for _ in range(num_connections)]
        flooding = [asyncio.create_task(flood(client, number)) for number in range(NUM_FLOODING)]
        await asyncio.sleep(5)
        before_bytes = resident_bytes(process.pid)
        attacked = await requests_of_bob(client, num_requests)
        grown_bytes = resident_bytes(process.pid) - before_bytes
        process.send_signal(signal.SIGTERM)
        stop_s = await asyncio.to_thread(_seconds_until_exit, process)
        for task in hostile + flooding:
            task.cancel()
    return alone, attacked, grown_bytes, stop_s


def _seconds_until_exit(process: Any) -> float:
    began_s = time.perf_counter()
    process.wait()
    return time.perf_counter() - began_s


def main() -> int:
    parser = options_of(__doc__)
    parser.add_argument("--connections", type=int, default=1000, help="hostile connections")
    parser.add_argument("--requests", type=int, default=60, help="requests of bob in each phase")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as (process, url):
        found = asyncio.run(measured(process, url, options.connections, options.requests))
    alone, attacked, grown_bytes, stop_s = found
    report = report_of(alone, attacked, grown_bytes, stop_s, options.connections, options.requests)
    return publish(report, "serving-hostile", options)


def report_of(
    alone: Answers, attacked: Answers, grown_bytes: int, stop_s: float, num_connections: int, num_requests: int
) -> Report:
    wrong = sum(int(np.abs(a - b).max() > ROUNDING) for a, b in zip(alone.images, attacked.images, strict=True))
    p95 = alone.percentile_ms(95), attacked.percentile_ms(95)
    checks = (
        Check.at_most("p95 under attack, of p95 alone", p95[1] / p95[0], P95_SHARE, unit="x"),
        Check.at_most("images that differ by more than rounding", wrong, 0),
        Check.at_most("growth of memory", grown_bytes / 2**20, FLAT_BYTES / 2**20, unit="MiB"),
        Check.at_most("from SIGTERM to exit", stop_s, GRACE_S + STOP_S, unit="s"),
    )
    columns = (Column("bob"), Column("p50", "ms", 1), Column("p95", "ms", 1), Column("answers"))
    rows = [
        (name, one.percentile_ms(50), one.percentile_ms(95), len(one.seconds))
        for name, one in (("alone", alone), ("under attack", attacked))
    ]
    scenario = {
        "connections": num_connections,
        "flooding": NUM_FLOODING,
        "requests": num_requests,
        "cores": os.cpu_count(),
        "software": versions(["torch", "diffusers", "uvicorn"]),
    }
    table = Table("Latency of one tenant", columns, tuple(rows))
    return Report("A server under attack", "serving", scenario, 0, (table,), (), checks)
