"""Whole systems: seconds per image and images per GPU-minute, without and with a queue; and cache loads."""

from __future__ import annotations

from typing import Any, TypeAlias

from takeup.core.report import Cell, Check, Column, Series, Table
from takeup.papers.findings import Findings
from takeup.serving.experiment import ServingScenario, serve
from takeup.serving.experiment.scenario import arrivals_of
from takeup.serving.policies.adapters import ADAPTER_POLICIES, shared_loads
from takeup.serving.report import RatePoint, queue_report
from takeup.serving.simulate.adapters import replay_adapters
from takeup.serving.traces.stacks import generate_accesses
from takeup.serving.traffic import Arrival, QueueOutcome

Numbers: TypeAlias = dict[str, Any]
SIMULATED = ("diffusers", "nirvana", "katz", "takeup")
LOAD_S = 0.5  # load time of a LoRA of 400 MiB, when two take a second


def single_requests(expected: Numbers) -> Findings:
    """One request at a time in every setting: the logs of the artefact, and the designs of the simulator."""
    part = expected["latency"]
    outcomes = [[_one_request(part, place, name) for name in SIMULATED] for place in range(len(part["settings"]))]
    checks = [check for place, row in enumerate(outcomes) for check in _single_request_checks(part, place, row)]
    return Findings(
        tuple(checks), (_seconds_table(part, outcomes), _per_gpu_table(part, outcomes)), (_chart(part, outcomes),)
    )


def queued_requests(expected: Numbers) -> Findings:
    """The two services on eight GPUs with a queue, which the paper leaves out."""
    setting, bar = expected["setting"], expected["queue_bar"]
    scenario = ServingScenario(
        verb="compare",
        designs=("diffusers", "static", "nirvana", "katz", "takeup"),
        rates_per_s=tuple(setting["rates_per_s"]),
        num_requests=setting["num_requests"],
        num_gpus=setting["num_gpus"],
        seed=setting["seed"],
    )
    points = []
    for rate_per_s in scenario.rates_per_s:
        arrivals = arrivals_of(scenario, rate_per_s)
        points += [RatePoint(rate_per_s, serve(arrivals, name, scenario)) for name in scenario.designs]
    report = queue_report(points, "", {}, setting["seed"])
    last = {point.outcome.design: point.outcome for point in points[-len(scenario.designs) :]}
    ours, katz = last["takeup"].images_per_gpu_minute, last["katz"].images_per_gpu_minute
    checks = (
        Check.at_least("images for a GPU-minute, takeup to katz", ours / katz, bar["per_gpu"], unit="x"),
        Check.at_least(
            "the same, if katz took no more GPUs than a request needs",
            ours / _images_per_used_gpu_minute(last["katz"]),
            bar["per_gpu_as_needed"],
            unit="x",
        ),
        Check.at_most("p95 in a queue, takeup to katz", _p95(last["takeup"]) / _p95(last["katz"]), 1.0, unit="x"),
    )
    return Findings(checks, report.tables, report.series)


def look_ahead(expected: Numbers) -> Findings:
    """Loads of LERC when it sees the queue, in order and in any order, relative to those of LRU."""
    setting, rows, checks = expected["setting"], list[tuple[Cell, ...]](), []
    queue = setting["queue"]
    for kind in ("a-lora", "b-lora"):
        accesses = generate_accesses(kind, setting["num_instances"] // 4, setting["seed"])
        once = len({(one.instance, adapter) for one in accesses for adapter in one.adapters})
        for size in setting["cache_sizes"]:
            lru = replay_adapters("lru", ADAPTER_POLICIES["lru"], accesses, capacity=size)
            make = ADAPTER_POLICIES["lerc"]
            in_order = replay_adapters("lerc", make, accesses, capacity=size, look_ahead=queue)
            any_order = replay_adapters(
                "lerc", make, accesses, capacity=size, look_ahead=queue, choose=shared_loads, patience=queue
            )
            best = replay_adapters("next", ADAPTER_POLICIES["next"], accesses, capacity=size, look_ahead=400)
            shares = [one.num_loads / lru.num_loads for one in (in_order, best, any_order)]
            rows.append((kind, size, lru.loads_per_request, *shares, once / lru.num_loads))
            checks.append(
                Check.at_most(f"{kind}, {size}: loads of LERC in any order", shares[2], expected["queue_bar"]["loads"])
            )
    names = (f"LERC, {queue} wait, in order", "in order, 400 wait", f"LERC, {queue} wait, any order", "everything once")
    columns = (Column("kind"), Column("cache"), Column("LRU", "1/request"), *(Column(name, "x") for name in names))
    note = f"in any order, nobody is overtaken by more than {queue} others"
    return Findings(
        tuple(checks), (Table("What a queue knows: loads as a share of LRU's", columns, tuple(rows), note),)
    )


def _one_request(part: Numbers, place: int, name: str) -> QueueOutcome:
    num_controls, num_loras = part["num_controls"][place], part["num_loras"][place]
    arrival = Arrival(0, 0.0, 50, 2, tuple(range(num_loras)), (LOAD_S,) * num_loras, num_controls)
    return serve([arrival], name, ServingScenario(verb="simulate"))


def _num_gpus(name: str, num_controls: int) -> int:
    """Two for the branches, and two per ControlNet; the other designs need one."""
    return 2 + 2 * num_controls if name == "katz" else 1


def _single_request_checks(part: Numbers, place: int, outcomes: list[QueueOutcome]) -> list[Check]:
    setting, checks = part["settings"][place], []
    for outcome in outcomes[:-1]:
        theirs = part[outcome.design][place]
        tolerance = part["tolerance_share"] * theirs
        name = f"{setting}: seconds of {outcome.design}"
        checks.append(Check.near(name, _seconds(outcome), theirs, tolerance, unit="s", source="measured"))
    katz_s, stock_s = part["katz"][place], part["diffusers"][place]
    gpus = _num_gpus("katz", part["num_controls"][place])
    for name, ours, theirs in (
        ("speed-up of katz", stock_s / katz_s, part["speedup"][place]),
        ("diffusers for a GPU-minute", 60 / stock_s, part["diffusers_per_gpu_minute"][place]),
        ("katz for a GPU-minute", 60 / katz_s / gpus, part["katz_per_gpu_minute"][place]),
    ):
        checks.append(Check.near(f"{setting}: {name}", ours, theirs, part["tolerance"], source="measured"))
    return checks


def _seconds(outcome: QueueOutcome) -> float:
    return outcome.served[0].latency_s


def _seconds_table(part: Numbers, outcomes: list[list[QueueOutcome]]) -> Table:
    theirs = ("diffusers", "nirvana", "distrifusion", "katz")
    columns = (
        Column("setting"),
        *(Column(f"{name}, logs", "s", 2) for name in theirs),
        *(Column(f"{name}, simulated", "s", 2) for name in SIMULATED),
    )
    rows = [
        (setting, *(part[name][place] for name in theirs), *map(_seconds, outcomes[place]))
        for place, setting in enumerate(part["settings"])
    ]
    note = "C: ControlNets, L: LoRAs; nirvana skips 10 of 50 steps; takeup has the calls of diffusers on one GPU"
    return Table("Seconds of an image, alone (Figure 14)", columns, tuple(rows), note)


def _per_gpu_table(part: Numbers, outcomes: list[list[QueueOutcome]]) -> Table:
    rows = []
    for place, setting in enumerate(part["settings"]):
        gpus = _num_gpus("katz", part["num_controls"][place])
        logs = (60 / part["diffusers"][place], 60 / part["katz"][place] / gpus)
        ours = 60 / _seconds(outcomes[place][-1])
        rows.append((setting, gpus, *logs, logs[1] / logs[0], ours, ours / logs[1]))
    columns = (
        Column("setting"),
        Column("GPUs of katz"),
        Column("diffusers, logs", "1/GPU-minute", 1),
        Column("katz, logs", "1/GPU-minute", 1),
        Column("katz to diffusers", "x", 2),
        Column("takeup, simulated", "1/GPU-minute", 1),
        Column("takeup to katz", "x", 2),
    )
    return Table("Images for a GPU-minute", columns, tuple(rows), "GPUs of katz: two, and two for every ControlNet")


def _chart(part: Numbers, outcomes: list[list[QueueOutcome]]) -> Series:
    rows: list[dict[str, Cell]] = []
    for place, setting in enumerate(part["settings"]):
        for outcome in outcomes[place]:
            rows.append({"setting": setting, "design": outcome.design, "seconds": _seconds(outcome)})
    return Series("Seconds of an image", "setting", "seconds", tuple(rows), "design", y_unit="s", kind="bar")


def _images_per_used_gpu_minute(outcome: QueueOutcome) -> float:
    """Images per GPU-minute if every request used only the GPUs for its ControlNets."""
    gpu_s = sum((one.end_s - one.start_s) * _num_gpus("katz", one.arrival.num_controls) for one in outcome.done)
    return 60 * len(outcome.done) / gpu_s


def _p95(outcome: QueueOutcome) -> float:
    latencies = sorted(one.latency_s for one in outcome.done)
    return latencies[int(0.95 * (len(latencies) - 1))]
