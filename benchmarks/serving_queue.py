"""Queueing of a real server and of the simulator: `python benchmarks/serving_queue.py [--json] [--out FOLDER]`.

A server of the tiny SDXL runs in a process of its own, and requests come to it over HTTP at Poisson times, whether the
ones before are done or not. While it serves them, the costs are measured in there: a step by the number of requests in
it, what comes before the steps and what comes after. The simulator serves the same arrivals with these costs. Compared
is how long requests wait until they are let in. Arrivals are those at the server: a sender that has no core for a
moment sends late, and then several at once. Beside it stands what the simulator says with costs that were measured on
other requests before, and with the times that were drawn: the difference is how steady the machine is.

The bar is the 99th percentile: at most 10 % apart. Times are of this machine; the same machine also sends requests.
Exit code 1 if the bar is missed.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from dated import options_of, publish, versions

from takeup.core.report import Cell, Check, Column, Report, Table
from takeup.serving.policies.adapters import ADAPTER_POLICIES
from takeup.serving.policies.admission import Admission
from takeup.serving.policies.batching import Grouping
from takeup.serving.policies.routing import least_busy
from takeup.serving.simulate.instance import Rules
from takeup.serving.simulate.queue import simulate_queue
from takeup.serving.simulate.residents import Tiers
from takeup.serving.traces.arrivals import poisson_arrivals
from takeup.serving.traffic import Arrival, Design, Outcome, RowCosts

MODEL, SIZE = "takeup/tiny-sdxl", "32x32"
NUM_STEPS, MAX_RUNNING, MAX_ROWS = 8, 4, 16
BAR_PERCENT, PERCENTS = 10.0, (50, 90, 95, 99)
Times = list[float]


@dataclass
class Costs:
    """What was measured inside the server. `steps`: seconds of a step loop's turn by the requests that made a step."""

    steps: dict[int, Times] = field(default_factory=dict)
    before: Times = field(default_factory=list)
    after: Times = field(default_factory=list)
    arrivals: Times = field(default_factory=list)
    starts: Times = field(default_factory=list)
    ends: Times = field(default_factory=list)

    @property
    def turnover_s(self) -> float:
        """From the time a place is free until somebody has it, when all were waiting from the beginning."""
        return statistics.fmean(start - end for start, end in zip(self.starts[MAX_RUNNING:], self.ends, strict=False))

    def design(self, turnover_s: float) -> Design:
        """The server as the simulator sees it."""
        points = tuple((2 * number, statistics.fmean(times)) for number, times in sorted(self.steps.items()))
        before_s, after_s = statistics.fmean(self.before), statistics.fmean(self.after) + turnover_s
        return Design("server", RowCosts(points), max_running=MAX_RUNNING, before_s=before_s, after_s=after_s)


# The server, in a process of its own --------------------------------------------------------------------------------


def serve(line: Connection) -> None:
    """Serve until the line says anything; says the address first, and hands the costs back on every word but `end`."""
    from takeup.serving.server.app import make_app
    from takeup.serving.server.models import Plan
    from takeup.serving.server.run import running
    from takeup.serving.server.settings import Limits, Settings
    from takeup.serving.server.tenants import Keys

    backend = Plan(MODEL, max_rows=MAX_ROWS, num_cpu_threads=1).build()
    meter = Meter(backend)
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(MODEL, Path(folder), limits=Limits(max_running=MAX_RUNNING, max_waiting=10_000))
        app = make_app(settings, backend, Keys([]))
        with running(app) as url:
            meter.watch(app.state.service.gate)
            line.send(url)
            while line.recv() != "end":
                line.send(meter.costs)
                meter.costs = Costs()


class Meter:
    """Stands between the API and its backend with a watch in its hand."""

    def __init__(self, backend: Any) -> None:
        self.costs = Costs()
        self._backend = backend
        self._start, self._advance, self._enter = backend.start, backend.engine.advance, backend.engine.enter
        backend.start, backend.engine.advance, backend.engine.enter = self.start, self.advance, self.enter
        self._started: dict[int, float] = {}
        self._marks: dict[Any, Times] = {}
        self._turned_s: float | None = None

    def watch(self, gate: Any) -> None:
        """Note when requests come to the gate (whoever sends them may be late), and when they have a place there."""
        admit, turn = gate.admit, gate.turn

        def admitted(num_jobs: int) -> Any:
            self.costs.arrivals.append(time.perf_counter())
            return admit(num_jobs)

        @asynccontextmanager
        async def turned(until_s: float | None = None) -> AsyncIterator[None]:
            async with turn(until_s):
                marks = self._marks[asyncio.current_task()] = [time.perf_counter()]
                self.costs.starts.append(marks[0])
                yield
            del self._marks[asyncio.current_task()]
            self.costs.ends.append(time.perf_counter())
            self.costs.after.append(self.costs.ends[-1] - marks[-1])

        gate.admit, gate.turn = admitted, turned

    def start(self, job: Any, on_step: Callable[[int, int], None]) -> Any:
        """A job begins; note when its last step is done."""
        marks = self._marks[asyncio.current_task()]

        def heard(step: int, num_steps: int) -> None:
            on_step(step, num_steps)
            if step == num_steps:
                marks.append(time.perf_counter())

        self._started[job.request.seed] = marks[0]
        return self._start(job, heard)

    def enter(self, run: Any, on_step: Any = None) -> Any:
        """It joins the step loop."""
        self.costs.before.append(time.perf_counter() - self._started.pop(run.request.seed))
        return self._enter(run, on_step)

    def advance(self) -> int:
        """One turn of the step loop; it takes until the next one can begin."""
        began_s = self._turned_s or time.perf_counter()
        steps = self._backend.numbers()["steps"]
        num_calls: int = self._advance()
        number = int(self._backend.numbers()["steps"] - steps)
        self._turned_s = time.perf_counter() if number else None
        if self._turned_s is not None:
            self.costs.steps.setdefault(number, []).append(self._turned_s - began_s)
        return num_calls


# Its clients --------------------------------------------------------------------------------------------------------


async def send_all(url: str, arrivals: Sequence[Arrival]) -> list[tuple[float, float]]:
    """Send every request at its time; seconds each has waited and taken, as the server says."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=200)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        began_s = asyncio.get_running_loop().time() + 0.5
        return await asyncio.gather(*(send(client, began_s, one) for one in arrivals))


async def send(client: httpx.AsyncClient, began_s: float, arrival: Arrival) -> tuple[float, float]:
    """One request."""
    await asyncio.sleep(began_s + arrival.arrival_s - asyncio.get_running_loop().time())
    body = {"prompt": "a cat", "size": SIZE, "steps": arrival.num_steps, "seed": arrival.number, "guidance": 5.0}
    answer = await client.post("/v1/images/generations", json=body)
    answer.raise_for_status()
    timing = answer.json()["timing"]
    return timing["queued_s"], timing["total_s"]


# Both together ------------------------------------------------------------------------------------------------------


def simulate(arrivals: Sequence[Arrival], design: Design) -> Outcome:
    """The same requests in virtual time."""
    rules = Rules(Grouping(MAX_ROWS), Tiers(ADAPTER_POLICIES["lru"]))
    return simulate_queue(arrivals, design, num_gpus=1, rules=rules, route=least_busy, admit=Admission())


def say(text: str) -> None:
    """To whoever waits."""
    print(f"{time.strftime('%X')} {text}", file=sys.stderr, flush=True)


def compare(
    num_requests: int, busy_share: float, seed: int, line: Connection
) -> tuple[list[tuple[Cell, ...]], Check, Design]:
    """Warm up, measure costs, serve other arrivals, simulate them."""
    url = line.recv()
    say(f"a server is at {url}")
    asyncio.run(send_all(url, poisson_arrivals(8, 50.0, seed, num_steps=NUM_STEPS)))
    line.send("forget the first")
    line.recv()
    asyncio.run(send_all(url, poisson_arrivals(40, 1000.0, seed, num_steps=NUM_STEPS)))
    line.send("how fast when full")
    costs: Costs = line.recv()
    turnover_s = costs.turnover_s
    full = costs.design(turnover_s)
    rate_per_s = busy_share * MAX_RUNNING / slot_s(full)
    say(f"{len(full.step.points)} sizes of a step known; costs at {rate_per_s:.1f} requests a second")
    asyncio.run(send_all(url, poisson_arrivals(num_requests // 2, rate_per_s, seed + 1, num_steps=NUM_STEPS)))
    line.send("costs")
    design: Design = line.recv().design(turnover_s)
    arrivals = poisson_arrivals(num_requests, rate_per_s, seed + 2, num_steps=NUM_STEPS)
    say("the comparison")
    real = asyncio.run(send_all(url, arrivals))
    line.send("costs again")
    costs = line.recv()
    line.send("end")
    came = [Arrival(number, time_s - costs.arrivals[0], NUM_STEPS) for number, time_s in enumerate(costs.arrivals)]
    rows, check = judge(
        rate_per_s, real, simulate(came, costs.design(turnover_s)), simulate(came, design), simulate(arrivals, design)
    )
    return rows, check, costs.design(turnover_s)


def slot_s(design: Design) -> float:
    """How long a request has its place when all places are taken."""
    return design.before_s + design.after_s + NUM_STEPS * design.step(2 * MAX_RUNNING)


def judge(
    rate_per_s: float, real: Sequence[tuple[float, float]], simulated: Outcome, foreseen: Outcome, as_drawn: Outcome
) -> tuple[list[tuple[Cell, ...]], Check]:
    """Percentiles side by side, and the bar."""
    waits, later, drawn = (
        [one.start_s - one.arrival.arrival_s for one in outcome.served] for outcome in (simulated, foreseen, as_drawn)
    )
    queued, total = [one[0] for one in real], [one[1] for one in real]
    took = [one.latency_s for one in simulated.served]
    rows: list[tuple[Cell, ...]] = []
    for percent in PERCENTS:
        values = [1000 * float(np.percentile(one, percent)) for one in (queued, waits, later, drawn, total, took)]
        rows.append((f"p{percent}", *values[:2], percent_off(values[1], values[0]), *values[2:]))
    off = abs(float(str(rows[-1][3])))
    name = f"p99 of queueing at {rate_per_s:.1f} requests a second, off by"
    return rows, Check.at_most(name, off, BAR_PERCENT, unit="%")


def percent_off(ours: float, theirs: float) -> float | None:
    """How far apart, as a share of what was measured."""
    return 100 * (ours / theirs - 1) if theirs > 1 else None  # below a millisecond it is noise


def report(num_requests: int, busy_share: float, seed: int) -> Report:
    """One server, one comparison."""
    context = multiprocessing.get_context("spawn")
    line, other = context.Pipe()
    server = context.Process(target=serve, args=(other,), daemon=True)
    server.start()
    try:
        rows, check, design = compare(num_requests, busy_share, seed, line)
    finally:
        line.close()
        server.join(20)
        server.kill()
    names = ("queueing, server", "queueing, simulator", "off by", "with costs measured before", "and with drawn times")
    columns = (
        Column("percentile"),
        *(Column(name, "%" if name == "off by" else "ms", 1) for name in names),
        Column("whole, server", "ms", 1),
        Column("whole, simulator", "ms", 1),
    )
    costs = tuple((rows_ // 2, 1000 * seconds) for rows_, seconds in design.step.points)
    return Report(
        title="Queueing of a real server and of the simulator",
        domain="serving",
        scenario={
            "model": MODEL,
            "size": SIZE,
            "steps": NUM_STEPS,
            "running": MAX_RUNNING,
            "requests": num_requests,
            "busy_share": busy_share,
            "versions": versions(("torch", "diffusers", "fastapi", "uvicorn", "httpx")),
        },
        seed=seed,
        tables=(
            Table("How long requests wait", columns, tuple(rows)),
            Table("A step", (Column("requests"), Column("takes", "ms", 2)), costs, note_of(design)),
        ),
        checks=(check,),
    )


def note_of(design: Design) -> str:
    return f"before the steps {1000 * design.before_s:.1f} ms, after them {1000 * design.after_s:.1f} ms"


def main() -> int:
    """Measure and report."""
    parser = options_of(__doc__)
    parser.add_argument("--requests", type=int, default=400, help="requests to compare")
    parser.add_argument("--busy", type=float, default=0.8, help="share of what the server can do that is asked of it")
    parser.add_argument("--seed", type=int, default=11, help="of the times at which requests come")
    options = parser.parse_args()
    return publish(report(options.requests, options.busy, options.seed), "serving-queue", options)


if __name__ == "__main__":
    sys.exit(main())
