"""Queueing in a real server and in the simulator: `python -m benchmarks.serving queueing [--load crowd]`.

A server of the tiny SDXL runs in a process of its own, and requests come to it over HTTP: *steady* at Poisson times,
whether the ones before are done or not, once for every seed; or from a *crowd* of 200 clients that ask again as soon as
they have an answer. The simulator serves the same arrivals with what the server's own metrics say: what a step takes by
its rows when the loop is alone, what is done before and after the steps, and how much both are in each other's way, for
they share an interpreter. Compared is how long requests wait until they are let in. Arrivals are those at the server: a
sender that has no core for a moment sends late, and then several at once. Beside it stands what the simulator says with
costs measured on other requests before: the difference is how steady the machine is.

A queue that is nearly full multiplies every error of a cost: at 85 % of what the server can do, 2 % become 20 % of the
99th percentile. So it is asked for 70 % of it, where 2 % become about 7 %.

The bar is the 99th percentile: at most 10 % apart. Of the crowd also: everybody has an answer, and the memory of the
server does not grow beyond what 200 clients and the requests it remembers may hold. Times are of this machine; the same
machine also sends requests. Exit code 1 if a bar is missed.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.support.dated import options_of, publish, versions
from takeup.core.report import Cell, Check, Column, Report, Table
from takeup.serving.diffusion.policies import Grouping
from takeup.serving.model import Arrival, Design
from takeup.serving.scheduling.adapters import ADAPTER_POLICIES
from takeup.serving.scheduling.queue import Admission
from takeup.serving.scheduling.routing import least_busy
from takeup.serving.simulate.designs import Counts, counts_of, measured_design
from takeup.serving.simulate.instance import InstancePolicies, simulate_queue
from takeup.serving.traces.arrivals import poisson_arrivals

MODEL, SIZE = "takeup/tiny-sdxl", "32x32"
NUM_STEPS, MAX_RUNNING, MAX_ROWS = 6, 4, 16
NUM_CLIENTS, NUM_FULL, NUM_BEFORE = 200, 60, 100
BAR_PERCENT, PERCENTS = 10.0, (50, 90, 95, 99)
CLIENT_BYTES, REMEMBERED_BYTES, NUM_REMEMBERED = 144 * 2**10, 16 * 2**10, 256
"""A client: buffers of 64 KiB for each direction, its job and its events. A request that is over: its events."""

COLUMNS = (
    Column("requests"),
    Column("percentile"),
    Column("queueing, server", "ms", 1),
    Column("queueing, simulator", "ms", 1),
    Column("off by", "%", 1),
    Column("with costs measured before", "ms", 1),
    Column("whole, server", "ms", 1),
    Column("whole, simulator", "ms", 1),
)
COST_COLUMNS = (
    Column("requests"),
    *(Column(f"a step of {number}", "ms", 1) for number in range(1, MAX_RUNNING + 1)),
    Column("before", "ms", 1),
    Column("after", "ms", 1),
    Column("in each other's way", digits=2),
)
COST_NOTE = "a step alone, by its requests; seconds by which steps are longer for each second of work beside them"


# The server, in a process of its own --------------------------------------------------------------------------------


def serve(line: Connection) -> None:
    """Serve until the line says `end`; says the address first, and when requests came on every other word."""
    from benchmarks.support.background_server import background_server
    from takeup.serving.server.access import ApiKeys
    from takeup.serving.server.app import make_app
    from takeup.serving.server.backends.local import ServingPlan
    from takeup.serving.server.settings import ServerLimits, ServerSettings

    backend = ServingPlan(MODEL, max_rows=MAX_ROWS, num_cpu_threads=1).build()
    came: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        settings = ServerSettings(MODEL, Path(folder), limits=ServerLimits(max_running=MAX_RUNNING, max_waiting=10_000))
        app = make_app(settings, backend, ApiKeys([]))
        with background_server(app) as url:
            note_arrivals(app.state.service.gate, came)
            line.send(url)
            while line.recv() != "end":
                line.send(came)
                came.clear()


def note_arrivals(gate: Any, came: list[float]) -> None:
    """Note when requests come to the gate."""
    usual: Callable[..., Any] = gate.admit

    def admit(*asked: Any, **more: Any) -> Any:
        came.append(time.perf_counter())
        return usual(*asked, **more)

    gate.admit = admit


# Its clients --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Load:
    """Requests that were served. `came_s` at the server, `waits_s` and `wholes_s` as it says; costs until then."""

    name: str
    came_s: Sequence[float]
    waits_s: Sequence[float]
    wholes_s: Sequence[float]
    costs: Design
    memory_bytes: Sequence[int] = ()


class Sender:
    """Sends loads to a server."""

    def __init__(self, line: Connection, pid: int) -> None:
        self._line, self._pid, self._url = line, pid, line.recv()
        self._warm: Counts = Counter()

    def warm_up(self) -> None:
        """What is slow at first is not counted."""
        self.steady("warm up", poisson_arrivals(40, 50.0, 1, num_steps=NUM_STEPS))
        self._warm = self._counts()

    def steady(self, name: str, arrivals: Sequence[Arrival]) -> Load:
        """Every request at its time."""

        async def one(client: httpx.AsyncClient, began_s: float, arrival: Arrival) -> tuple[float, float]:
            await asyncio.sleep(began_s + arrival.arrival_s - asyncio.get_running_loop().time())
            return await ask(client, arrival.number)

        async def everybody(client: httpx.AsyncClient) -> list[tuple[float, float]]:
            began_s = asyncio.get_running_loop().time() + 0.5
            return await asyncio.gather(*(one(client, began_s, arrival) for arrival in arrivals))

        return self._load(name, everybody, [])

    def crowd(self, name: str, num_requests: int) -> Load:
        """So many clients at once; each asks until all requests are asked for. Memory after every round of all."""
        numbers = itertools.count()
        memory_bytes: list[int] = []

        async def client_of_crowd(client: httpx.AsyncClient) -> list[tuple[float, float]]:
            answers = []
            while (number := next(numbers)) < num_requests:
                answers.append(await ask(client, number))
                if number % NUM_CLIENTS == NUM_CLIENTS - 1:
                    memory_bytes.append(resident_bytes(self._pid))
            return answers

        async def everybody(client: httpx.AsyncClient) -> list[tuple[float, float]]:
            answers = await asyncio.gather(*(client_of_crowd(client) for _ in range(NUM_CLIENTS)))
            return list(itertools.chain.from_iterable(answers))

        return self._load(name, everybody, memory_bytes)

    def _load(self, name: str, everybody: Callable[[httpx.AsyncClient], Any], memory_bytes: Sequence[int]) -> Load:
        say(name)
        answers = asyncio.run(with_client(self._url, everybody))
        counts = self._counts()
        counts.subtract(self._warm)
        self._line.send("who came")
        came_s = self._line.recv()
        costs = measured_design(counts, max_running=MAX_RUNNING)
        waits_s, wholes_s = zip(*answers, strict=True)
        return Load(name, came_s, waits_s, wholes_s, costs, memory_bytes)

    def _counts(self) -> Counts:
        return counts_of(httpx.get(f"{self._url}/metrics").text)


async def with_client(url: str, everybody: Callable[[httpx.AsyncClient], Any]) -> list[tuple[float, float]]:
    """All answers: seconds each has waited and taken, as the server says."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=NUM_CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        answers: list[tuple[float, float]] = await everybody(client)
        return answers


async def ask(client: httpx.AsyncClient, number: int) -> tuple[float, float]:
    """One request."""
    body = {"prompt": "a cat", "size": SIZE, "steps": NUM_STEPS, "seed": number, "guidance": 5.0}
    answer = await client.post("/v1/images/generations", json=body)
    answer.raise_for_status()
    timing = answer.json()["timing"]
    return timing["queued_s"], timing["total_s"]


def resident_bytes(pid: int) -> int:
    """Memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    (kibi,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
    return int(kibi) * 2**10


def say(text: str) -> None:
    """To whoever waits."""
    print(f"{time.strftime('%X')} {text}", file=sys.stderr, flush=True)


# Both together ------------------------------------------------------------------------------------------------------


def simulate(load: Load, design: Design) -> tuple[list[float], list[float]]:
    """The same requests in virtual time: how long they wait, and the whole."""
    arrivals = [Arrival(number, came_s - load.came_s[0], NUM_STEPS) for number, came_s in enumerate(load.came_s)]
    rules = InstancePolicies(Grouping(MAX_ROWS), ADAPTER_POLICIES["lru"])
    outcome = simulate_queue(arrivals, design, num_gpus=1, rules=rules, route=least_busy, admit=Admission())
    waits_s = [one.start_s - one.arrival.arrival_s for one in outcome.served]
    return waits_s, [one.latency_s for one in outcome.served]


def judge(load: Load, foreseen: Design) -> tuple[list[tuple[Cell, ...]], Check]:
    """Percentiles side by side, and the bar."""
    waits_s, wholes_s = simulate(load, load.costs)
    later_s, _ = simulate(load, foreseen)
    rows: list[tuple[Cell, ...]] = []
    compared = (load.waits_s, waits_s, later_s, load.wholes_s, wholes_s)
    for percent in PERCENTS:
        real, ours, later, whole, our_whole = (1000 * float(np.percentile(one, percent)) for one in compared)
        rows.append((load.name, f"p{percent}", real, ours, percent_off(ours, real), later, whole, our_whole))
    off = abs(float(str(rows[-1][4])))
    return rows, Check.at_most(f"{load.name}: p99 of queueing off by", off, BAR_PERCENT, unit="%")


def percent_off(ours: float, theirs: float) -> float | None:
    """How far apart, as a share of what was measured."""
    return 100 * (ours / theirs - 1) if theirs > 1 else None  # below a millisecond it is noise


def cost_row(load: Load) -> tuple[Cell, ...]:
    """What the server says of its costs."""
    costs = load.costs
    steps = (1000 * costs.step(2 * number) for number in range(1, MAX_RUNNING + 1))
    return (load.name, *steps, 1000 * costs.before_s, 1000 * costs.after_s, costs.contention_share)


def memory_check(load: Load) -> Check:
    """From the first round to the last."""
    bound_bytes = NUM_CLIENTS * CLIENT_BYTES + NUM_REMEMBERED * REMEMBERED_BYTES
    grown_bytes = max(load.memory_bytes) - load.memory_bytes[0]
    return Check.at_most("memory grows after the first round by", grown_bytes / 2**20, bound_bytes / 2**20, unit="MiB")


def loads_of(sender: Sender, options: Any) -> tuple[list[Load], list[Check]]:
    """The load to learn costs from before, then those to compare."""
    sender.warm_up()
    full = sender.steady("all at once", [Arrival(number, 0.0, NUM_STEPS) for number in range(NUM_FULL)])
    rate_per_s = options.busy * NUM_FULL / max(full.wholes_s)
    other = poisson_arrivals(NUM_BEFORE, rate_per_s, 1, num_steps=NUM_STEPS)
    before = sender.steady("costs before", other)
    if options.load == "crowd":
        crowd = sender.crowd(f"{NUM_CLIENTS} clients", options.requests)
        answered = Check.at_least("requests with an answer", len(crowd.waits_s), options.requests)
        return [before, crowd], [answered, memory_check(crowd)]
    seeds = [int(seed) for seed in options.seeds.split(",")]
    return [before, *(steady_load(sender, options.requests, rate_per_s, seed) for seed in seeds)], []


def steady_load(sender: Sender, num_requests: int, rate_per_s: float, seed: int) -> Load:
    """Poisson times of one seed."""
    arrivals = poisson_arrivals(num_requests, rate_per_s, seed, num_steps=NUM_STEPS)
    return sender.steady(f"{rate_per_s:.1f} a second, seed {seed}", arrivals)


def report(options: Any) -> Report:
    """One server, all loads."""
    context = multiprocessing.get_context("spawn")
    line, other = context.Pipe()
    server = context.Process(target=serve, args=(other,), daemon=True)
    server.start()
    try:
        (before, *loads), checks = loads_of(Sender(line, server.pid or 0), options)
        line.send("end")
    finally:
        line.close()
        server.join(20)
        server.kill()
    judged = [judge(load, before.costs) for load in loads]
    memory = tuple((number, size / 2**20) for load in loads for number, size in enumerate(load.memory_bytes, start=1))
    tables = [
        Table("How long requests wait", COLUMNS, tuple(row for rows, _ in judged for row in rows)),
        Table("Costs, as the server counts them", COST_COLUMNS, tuple(map(cost_row, (before, *loads))), COST_NOTE),
    ]
    if memory:
        tables.append(Table("Memory of the server", (Column("round"), Column("resident", "MiB", 1)), memory))
    return Report(
        title="Queueing of a real server and of the simulator",
        domain="serving",
        scenario=scenario_of(options),
        seed=int(options.seeds.split(",")[0]),
        tables=tuple(tables),
        checks=(*(check for _, check in judged), *checks),
    )


def scenario_of(options: Any) -> dict[str, object]:
    """What was asked of the server."""
    return {
        "model": MODEL,
        "size": SIZE,
        "steps": NUM_STEPS,
        "running": MAX_RUNNING,
        "load": options.load,
        "requests": options.requests,
        "busy_share": options.busy,
        "seeds": options.seeds,
        "versions": versions(("torch", "diffusers", "fastapi", "uvicorn", "httpx")),
    }


def main() -> int:
    """Measure and report."""
    parser = options_of(__doc__)
    parser.add_argument("--load", choices=("steady", "crowd"), default="steady", help="who asks")
    parser.add_argument("--requests", type=int, default=1000, help="requests to compare, for each seed")
    parser.add_argument("--busy", type=float, default=0.7, help="share of what the server can do that is asked of it")
    parser.add_argument("--seeds", default="11", help="of the times at which requests come")
    options = parser.parse_args()
    topic = "crowd" if options.load == "crowd" else f"steady-{options.seeds.replace(',', '-')}"
    return publish(report(options), f"serving-queue-{topic}", options)
