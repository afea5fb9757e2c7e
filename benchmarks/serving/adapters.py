"""Loads of adapters per request, as shares of LRU's: `python -m benchmarks.serving adapters [--gentd26 FILE] [--json]`.

Caches of 5 and 10 LoRAs on every instance, for requests drawn from what was measured on two services, and for GenTD26
if its file is given (one queue; *all* has the requests without a LoRA in it too). Policies that look at the queue see
the next 32 or 64 requests. *Any order* serves the one that loads least, of these the one whose loads make most others
ready, and lets nobody be overtaken by more others than the queue is long. *Optimum in order* is Belady's, which sees
everything: no policy loads less in the order of the trace. *Once* loads every adapter of an instance a single time:
nobody loads less in any order. The bar is on `lerc` with 64 waiting requests that want a LoRA, in any order.

*Affinity* sends requests where their adapters are, to no instance above `slack` times the mean; it has no bar, and all
values of `slack` that were tried are shown. The third table has queues that are as long as they are: a simulated
service of 8 GPUs at several loads, with the same routing for both. Counts, not times: the same on every machine. Exit
code 1 if a bar is missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.support.dated import options_of, publish
from benchmarks.support.routed_replay import Affinity, replay_routed
from takeup.core.report import Check, Column, Report, Table
from takeup.serving.contract import Route
from takeup.serving.experiment import ServingScenario, arrivals_of, serve
from takeup.serving.model import Access
from takeup.serving.scheduling.adapters import ADAPTER_POLICIES, shared_loads
from takeup.serving.scheduling.routing import least_busy
from takeup.serving.simulate.adapter_cache import replay_adapters
from takeup.serving.traces.adapter_accesses import MEASURED, generate_accesses, interleaved
from takeup.serving.traces.arrivals import read_gentd26

SEED, NUM_INSTANCES, NUM_ROUTED, NUM_GENTD26 = 0, 6, 24, 8
SIZES, QUEUES, SLACKS = (5, 10), (32, 64), (1.0, 1.1, 1.25, 1.5)
RATES, NUM_REQUESTS = (0.8, 1.2, 1.4, 1.6), 4000
BAR, TRACE_BAR = 0.8, 5.0
Row = tuple[str | float, ...]


def optimum(accesses: Sequence[Access], capacity: int) -> int:
    """The fewest loads in this order: what is used again last leaves."""
    uses: dict[int, list[int]] = {}
    for access in accesses:
        uses.setdefault(access.instance, []).extend(access.adapters)
    return sum(_optimum(one, capacity) for one in uses.values())


def _optimum(uses: Sequence[int], capacity: int) -> int:
    again, seen = [len(uses)] * len(uses), dict[int, int]()
    for place in range(len(uses) - 1, -1, -1):
        again[place] = seen.get(uses[place], len(uses))
        seen[uses[place]] = place
    cache: dict[int, int] = {}
    num_loads = 0
    for place, adapter in enumerate(uses):
        if adapter not in cache:
            num_loads += 1
            if len(cache) == capacity:
                del cache[max(cache, key=cache.__getitem__)]
        cache[adapter] = again[place]
    return num_loads


def eviction_row(name: str, accesses: Sequence[Access], capacity: int) -> Row:
    """All policies on the instances of the trace, as shares of the loads of LRU."""
    lru = replay_adapters("lru", ADAPTER_POLICIES["lru"], accesses, capacity=capacity)

    def share(policy: str, look_ahead: int = 0, patience: int = 0) -> float:
        replayed = replay_adapters(
            policy,
            ADAPTER_POLICIES[policy],
            accesses,
            capacity=capacity,
            look_ahead=look_ahead,
            choose=shared_loads if patience else None,
            patience=patience,
        )
        return replayed.num_loads / lru.num_loads

    in_order = (share(policy, queue) for policy in ("lerc", "furthest_next_use") for queue in QUEUES)
    any_order = (share("lerc", queue, patience=queue) for queue in QUEUES)
    best = optimum(accesses, capacity) / lru.num_loads
    once = len({(access.instance, one) for access in accesses for one in access.adapters}) / lru.num_loads
    past = (share("lfu"), share("gdsf"))
    return (f"{name}, {capacity}", lru.loads_per_request, *past, *in_order, *any_order, best, once)


def routing_row(name: str, accesses: Sequence[Access], capacity: int, num_instances: int) -> Row:
    """Loads per request under LRU: on the instances of the trace, on the least busy one, and by affinity."""
    make = ADAPTER_POLICIES["lru"]
    where: list[Route] = [least_busy, *(Affinity(slack) for slack in SLACKS)]
    routed = [
        replay_routed("lru", make, accesses, capacity=capacity, num_instances=num_instances, route=route)
        for route in where
    ]
    kept = replay_adapters("lru", make, accesses, capacity=capacity)
    return (f"{name}, {capacity}", num_instances, *(one.loads_per_request for one in (kept, *routed)))


def trace_error(name: str) -> float:
    """The largest difference of the loads of LRU to the measured ones, for caches of 1 to 10, in percent."""
    accesses, make = generate_accesses(name, NUM_ROUTED, SEED), ADAPTER_POLICIES["lru"]
    loads = [replay_adapters("lru", make, accesses, capacity=size).loads_per_request for size in range(1, 11)]
    return max(100 * abs(ours / theirs - 1) for ours, theirs in zip(loads, MEASURED[name].lru_loads, strict=True))


def report(gentd26: Path | None) -> Report:
    """Everything, with its bars."""
    traces = {name: generate_accesses(name, NUM_INSTANCES, SEED) for name in ("a-lora", "b-lora")}
    if gentd26 is not None:
        traces["gentd26"] = [access for access in read_gentd26(gentd26) if access.adapters]
    evictions = [eviction_row(name, accesses, size) for name, accesses in traces.items() for size in SIZES]
    others = [eviction_row("gentd26, all", read_gentd26(gentd26), size) for size in SIZES] if gentd26 else []
    routed = [row for name, accesses in traces.items() for row in routing_rows(name, accesses)]
    errors = {name: trace_error(name) for name in ("a-lora", "b-lora")}
    checks = [Check.at_most(f"{name}: drawn, LRU off by", error, TRACE_BAR, unit="%") for name, error in errors.items()]
    checks += [
        Check.at_most(f"{row[0]}: lerc, queue 64, any order, of LRU's loads", float(row[-3]), BAR) for row in evictions
    ]
    return Report(
        title="Caches of adapters",
        domain="serving",
        scenario={"instances": NUM_INSTANCES, "routed_instances": NUM_ROUTED, "slacks": list(SLACKS)},
        seed=SEED,
        tables=(eviction_table(evictions + others), routing_table(routed), waiting_table()),
        checks=tuple(checks),
    )


def waiting_table() -> Table:
    """The same comparison with queues of a simulated service: who waits is who can be looked at and served first."""
    columns = (
        Column("rate", "1/s", digits=1),
        Column("busy", "%", digits=0),
        Column("waiting at an instance", digits=1),
        Column("lru, in order", "loads/request"),
        Column("lerc, in order", "x"),
        Column("lerc, any order", "x"),
    )
    note = "8 instances of one GPU, 10 LoRAs each, at most 64 wait at one (others are refused); affinity for all"
    return Table("With the queue there is: loads as a share of LRU's", columns, tuple(map(waiting_row, RATES)), note)


def waiting_row(rate_per_s: float) -> Row:
    """One load: LRU in order, then LERC in order and in any order, on the same requests."""
    longest, rules = QUEUES[-1], [("lru", "in_order"), ("lerc", "in_order"), ("lerc", "shared_loads")]
    values = {"verb": "simulate", "num_requests": NUM_REQUESTS, "max_waiting": longest, "patience": longest}
    scenarios = [
        ServingScenario.model_validate({**values, "eviction": eviction, "order": order}) for eviction, order in rules
    ]
    arrivals = arrivals_of(scenarios[0], rate_per_s)
    lru, in_order, any_order = (serve(arrivals, "takeup", scenario) for scenario in scenarios)
    whole_s = max(one.end_s for one in lru.served) * lru.num_gpus
    waiting = sum(one.start_s - one.arrival.arrival_s for one in lru.done) / whole_s
    shares = (one.loads_per_request / lru.loads_per_request for one in (in_order, any_order))
    return (rate_per_s, 100 * lru.busy_s / whole_s, waiting, lru.loads_per_request, *shares)


def routing_rows(name: str, accesses: Sequence[Access]) -> list[Row]:
    """Both sizes, on the instances of the service or, where the trace has one queue, on a few."""
    if name == "gentd26":
        return [routing_row(name, accesses, size, NUM_GENTD26) for size in SIZES]
    many = interleaved(generate_accesses(name, NUM_ROUTED, SEED))
    return [routing_row(name, many, size, NUM_ROUTED) for size in SIZES]


def eviction_table(rows: Sequence[Row]) -> Table:
    names = ["lfu", "gdsf"]
    names += [f"{policy}, queue {queue}" for policy in ("lerc", "furthest_next_use") for queue in QUEUES]
    names += [f"lerc, queue {queue}, any order" for queue in QUEUES] + ["optimum in order", "once"]
    columns = (Column("trace, size"), Column("lru", "loads/request"), *(Column(name, "x") for name in names))
    return Table("What leaves: loads as a share of LRU's", columns, tuple(rows), note=f"{NUM_INSTANCES} instances")


def routing_table(rows: Sequence[Row]) -> Table:
    note = "as in the trace: gentd26 has one queue there, so one cache instead of eight"
    names = ["as in the trace", "least busy", *(f"affinity {slack:g}" for slack in SLACKS)]
    columns = Column("trace, size"), Column("instances", digits=0), *(Column(name, "loads/request") for name in names)
    return Table("Where requests go: loads per request under LRU", columns, tuple(rows), note=note)


def main() -> int:
    """Replay everything and report."""
    parser = options_of(__doc__)
    parser.add_argument("--gentd26", type=Path, metavar="FILE", help="data_trace_processed, as CSV or in its archive")
    options = parser.parse_args()
    return publish(report(options.gentd26), "serving-adapters", options)
