"""Designs: formulas (speed-ups, bytes on the wire, the bound K, sums of LoRAs, drift) and simulated systems.

Systems are compared in seconds per image and images per GPU-minute, without and with a queue, and in cache loads.
"""

from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from takeup.core.report import Cell, Check, Column, Series, Table
from takeup.core.seeds import Streams
from takeup.papers import Findings, Numbers
from takeup.serving.experiment import RatePoint, ServingScenario, arrivals_of, queue_report, serve
from takeup.serving.model import Arrival, QueueOutcome
from takeup.serving.scheduling.adapters import ADAPTER_POLICIES, bound_for, measured_bound, shared_loads
from takeup.serving.simulate.adapter_cache import replay_adapters
from takeup.serving.traces.adapter_accesses import generate_accesses

Floats: TypeAlias = npt.NDArray[np.float32]
NUMBER_FORMATS = ("bfloat16", "float16", "float32")


def speedups(expected: Numbers) -> Findings:
    """ControlNets concurrent with the U-Net encoder: Gustafson's law, operation counts, and measured speed-ups."""
    law, flops = expected["speedup"], expected["flops"]
    rows, checks = list[tuple[Cell, ...]](), []
    printed = zip(law["num_controls"], law["gustafson"], flops["speedup"], law["achieved"], strict=True)
    for number, their_law, their_bound, reached in printed:
        name = f"{number} ControlNets"
        gustafson = law["serial_share"] + (1 - law["serial_share"]) * (number + 1)
        one_by_one = flops["encoder_t"] + flops["decoder_t"] + number * flops["control_t"]
        bound = one_by_one / (flops["decoder_t"] + max(flops["encoder_t"], flops["control_t"]))
        rows.append((number, their_law, gustafson, their_bound, bound, reached))
        near = Check.near(f"{name}, by operations", bound, their_bound, flops["tolerance"], unit="x", source="measured")
        law_check = Check.near(f"{name}, Gustafson", gustafson, their_law, 0.005, unit="x")
        checks += [law_check, near, Check.at_least(f"{name}, bound above what was reached", bound, reached)]
    names = ("Gustafson, paper", "Gustafson, ours", "operations, theirs", "operations, ours", "reached")
    columns = (Column("ControlNets"), *(Column(name, "x", 2) for name in names))
    return Findings(tuple(checks), (Table("ControlNets side by side (Section 5)", columns, tuple(rows)),))


def wire_bytes(expected: Numbers) -> Findings:
    """Bytes per step of SDXL at 1024x1024 in 16 bits, and the order in which the decoder needs them."""
    printed, order = expected["wire"], expected["wire_order"]
    last, second, first = _residuals(1024 // 8)
    elements = last + second + first
    pair_bytes = 2 * 2 * elements
    ours = {
        "residuals of both branches, MiB": (pair_bytes / 2**20, order["residuals_mib"]),
        "latents of a branch, KiB": (2 * 4 * (1024 // 8) ** 2 / 2**10, order["latents_kib"]),
        "needed first, %": (100 * first / elements, order["percent"][0]),
        "needed second, %": (100 * second / elements, order["percent"][1]),
        "needed last, %": (100 * last / elements, order["percent"][2]),
    }
    name, tolerance = "residuals of both branches, MB", order["tolerance"]
    checks = [Check.near(name, pair_bytes / 1e6, printed["residuals_mb"], printed["tolerance"])]
    checks += [Check.near(one, mine, its, tolerance, source="measured") for one, (mine, its) in ours.items()]
    rows = [(name, printed["residuals_mb"], pair_bytes / 1e6), *((one, its, mine) for one, (mine, its) in ours.items())]
    columns = (Column("what"), Column("theirs", digits=1), Column("ours", digits=1))
    return Findings(tuple(checks), (Table("On the wire in a step", columns, tuple(rows)),))


def _residuals(side: int) -> tuple[int, int, int]:
    """Elements per branch by resolution: full, half, and a quarter with the middle block."""
    full = 3 * 320 * side**2
    half = (320 + 2 * 640) * (side // 2) ** 2
    quarter = (640 + 3 * 1280) * (side // 4) ** 2
    return full, half, quarter


def bounds(expected: Numbers) -> Findings:
    """K for other step counts, for image-to-image, and for few-step models, from the printed K."""
    part = expected["bound"]
    steps, bound = part["steps"], part["bound"]
    alike = [1.0] * bound + [part["least_similarity"] - 1e-6] * (steps - bound)
    cases = ((steps, 1.0), (steps // 2, 1.0), (steps, 0.9), (steps, 0.5), (8, 1.0), (4, 1.0))
    both = bound, part["artefact_bound"]
    rows: list[tuple[Cell, ...]] = [
        (number, strength, *(bound_for(one, steps, number, strength) for one in both)) for number, strength in cases
    ]
    checks = [
        Check.near("K of latents alike for ten steps", measured_bound(alike, part["least_similarity"]), bound, 0.0),
        Check.near("K for models of few steps", float(str(rows[-1][2])), 0.0, 0.0, source="bar"),
    ]
    columns = (Column("steps"), Column("strength", digits=1), Column("K, paper's 10"), Column("K, artefact's 20"))
    note = "the evaluation of the paper states K = 10 of 50; its artefact waits at step 20, and patched at 16 to 20"
    return Findings(tuple(checks), (Table("How late LoRAs may come (Section 6)", columns, tuple(rows), note),))


def cross_terms(expected: Numbers) -> Findings:
    """Two LoRAs summed factor by factor, as in the artefact, against the sum of their products."""
    part = expected["cross_terms"]
    random = Streams(expected["setting"]["seed"]).stream("cross terms")
    ups, downs = random.standard_normal((2, 640, 16)), random.standard_normal((2, 16, 640))
    right = ups[0] @ downs[0] + ups[1] @ downs[1]
    wrong = (ups[0] + ups[1]) @ (downs[0] + downs[1])
    error = float(np.linalg.norm(wrong - right) / np.linalg.norm(right))
    check = Check.near("error of (B1 + B2)(A1 + A2)", error, part["error"], part["tolerance"], source="measured")
    rows = (("sum of the factors, then product", part["error"], error), ("sum of the products", 0.0, 0.0))
    table = Table("Two LoRAs at once", (Column("how"), Column("error, theirs"), Column("error, ours")), rows)
    return Findings((check,), (table,))


def drift(expected: Numbers) -> Findings:
    """Weights after LoRAs were merged and removed by subtraction, or restored from a copy."""
    part, rows, checks = expected["drift"], list[tuple[Cell, ...]](), []
    for name in NUMBER_FORMATS:
        ours = _drifts(name, part["swaps"], expected["setting"]["seed"])
        rows.append((name, *part[name], *ours, 0.0))
        for swaps, mine, theirs in zip(part["swaps"], ours, part[name], strict=True):
            what, factor = f"{name}, {swaps} swaps: factor to theirs", max(mine / theirs, theirs / mine)
            checks.append(Check.at_most(what, factor, part["tolerance_factor"], source="measured"))
    sides = (f"{swaps}, {side}" for side in ("theirs", "ours") for swaps in part["swaps"])
    columns = (Column("format"), *(Column(side, digits=9) for side in sides), Column("from a copy"))
    note = "relative error of the weights after that number of swaps; other weights and LoRAs, so factors are compared"
    return Findings(tuple(checks), (Table("Taking LoRAs out by subtraction", columns, tuple(rows), note),))


def _drifts(name: str, swaps: list[int], seed: int) -> list[float]:
    random = Streams(seed).stream(f"drift {name}")
    pristine = _rounded((random.standard_normal((256, 256)) * 0.03).astype(np.float32), name)
    weights, errors = pristine, []
    for number in range(1, max(swaps) + 1):
        factors = random.standard_normal((256, 8)), random.standard_normal((8, 256))
        change = _rounded((factors[0] @ factors[1] * 1e-3).astype(np.float32), name)
        weights = _rounded(_rounded(weights + change, name) - change, name)
        if number in swaps:
            errors.append(float(np.linalg.norm(weights - pristine) / np.linalg.norm(pristine)))
    return errors


def _rounded(values: Floats, name: str) -> Floats:
    """Single precision, rounded to the digits of the format."""
    if name == "float16":
        return values.astype(np.float16).astype(np.float32)
    if name == "bfloat16":  # the upper half of a single, rounded to even
        bits = values.view(np.uint32)
        rounded: npt.NDArray[np.uint32] = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
        return rounded.view(np.float32)
    return values


SIMULATED = ("diffusers", "nirvana", "swiftdiffusion", "takeup")
LOAD_S = 0.5  # load time of a LoRA of 400 MiB, when two take a second


def single_requests(expected: Numbers) -> Findings:
    """One request at a time in every setting: the logs of the artefact, and the designs of the simulator."""
    part = expected["latency"]
    outcomes = [[_one_request(part, place, name) for name in SIMULATED] for place in range(len(part["settings"]))]
    checks = [check for place, row in enumerate(outcomes) for check in _single_request_checks(part, place, row)]
    tables = _seconds_table(part, outcomes), _per_gpu_table(part, outcomes)
    return Findings(tuple(checks), tables, (_chart(part, outcomes),))


def queued_requests(expected: Numbers) -> Findings:
    """The two services on eight GPUs with a queue, which the paper leaves out."""
    setting, bar = expected["setting"], expected["queue_bar"]
    scenario = ServingScenario(
        verb="compare",
        designs=("diffusers", "static", "nirvana", "swiftdiffusion", "takeup"),
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
    ours, swiftdiffusion = last["takeup"].images_per_gpu_minute, last["swiftdiffusion"].images_per_gpu_minute
    name = "images for a GPU-minute, takeup to swiftdiffusion"
    fewer, used = "the same, if swiftdiffusion took no more GPUs than a request needs", last["swiftdiffusion"]
    checks = (
        Check.at_least(name, ours / swiftdiffusion, bar["per_gpu"], unit="x"),
        Check.at_least(fewer, ours / _images_per_used_gpu_minute(used), bar["per_gpu_as_needed"], unit="x"),
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
            lru, *others = (
                replay_adapters(name, ADAPTER_POLICIES[name], accesses, capacity=size, **settings)
                for name, settings in (
                    ("lru", {}),
                    ("lerc", {"look_ahead": queue}),
                    ("furthest_next_use", {"look_ahead": 400}),
                    ("lerc", {"look_ahead": queue, "choose": shared_loads, "patience": queue}),
                )
            )
            shares = [one.num_loads / lru.num_loads for one in others]
            rows.append((kind, size, lru.loads_per_request, *shares, once / lru.num_loads))
            name, bar = f"{kind}, {size}: loads of LERC in any order", expected["queue_bar"]["loads"]
            checks.append(Check.at_most(name, shares[2], bar))
    names = (f"LERC, {queue} wait, in order", "in order, 400 wait", f"LERC, {queue} wait, any order", "everything once")
    columns = (Column("kind"), Column("cache"), Column("LRU", "1/request"), *(Column(name, "x") for name in names))
    note = f"in any order, no request is overtaken by more than {queue} others"
    return Findings(
        tuple(checks), (Table("What a queue knows: loads as a share of LRU's", columns, tuple(rows), note),)
    )


def _one_request(part: Numbers, place: int, name: str) -> QueueOutcome:
    num_controls, num_loras = part["num_controls"][place], part["num_loras"][place]
    arrival = Arrival(0, 0.0, 50, 2, tuple(range(num_loras)), (LOAD_S,) * num_loras, num_controls)
    return serve([arrival], name, ServingScenario(verb="simulate"))


def _num_gpus(name: str, num_controls: int) -> int:
    """Two for the branches, and two per ControlNet; the other designs need one."""
    return 2 + 2 * num_controls if name == "swiftdiffusion" else 1


def _single_request_checks(part: Numbers, place: int, outcomes: list[QueueOutcome]) -> list[Check]:
    setting, checks = part["settings"][place], []
    for outcome in outcomes[:-1]:
        theirs = part[outcome.design][place]
        tolerance = part["tolerance_share"] * theirs
        name = f"{setting}: seconds of {outcome.design}"
        check = Check.near(name, outcome.served[0].latency_s, theirs, tolerance, unit="s", source="measured")
        checks.append(replace(check, exercises="simulation"))
    katz_s, stock_s = part["swiftdiffusion"][place], part["diffusers"][place]
    gpus = _num_gpus("swiftdiffusion", part["num_controls"][place])
    for name, ours, theirs in (
        ("speed-up of swiftdiffusion", stock_s / katz_s, part["speedup"][place]),
        ("diffusers for a GPU-minute", 60 / stock_s, part["diffusers_per_gpu_minute"][place]),
        ("swiftdiffusion for a GPU-minute", 60 / katz_s / gpus, part["katz_per_gpu_minute"][place]),
    ):
        check = Check.near(f"{setting}: {name}", ours, theirs, part["tolerance"], source="measured")
        checks.append(replace(check, exercises="arithmetic"))
    return checks


def _seconds_table(part: Numbers, outcomes: list[list[QueueOutcome]]) -> Table:
    theirs = ("diffusers", "nirvana", "distrifusion", "swiftdiffusion")
    columns = (
        Column("setting"),
        *(Column(f"{name}, logs", "s", 2) for name in theirs),
        *(Column(f"{name}, simulated", "s", 2) for name in SIMULATED),
    )
    rows = [
        (setting, *(part[name][place] for name in theirs), *(one.served[0].latency_s for one in outcomes[place]))
        for place, setting in enumerate(part["settings"])
    ]
    note = "C: ControlNets, L: LoRAs; nirvana skips 10 of 50 steps; takeup has the calls of diffusers on one GPU"
    return Table("Seconds of an image, alone (Figure 14)", columns, tuple(rows), note)


def _per_gpu_table(part: Numbers, outcomes: list[list[QueueOutcome]]) -> Table:
    rows = []
    for place, setting in enumerate(part["settings"]):
        gpus = _num_gpus("swiftdiffusion", part["num_controls"][place])
        logs = (60 / part["diffusers"][place], 60 / part["swiftdiffusion"][place] / gpus)
        ours = 60 / outcomes[place][-1].served[0].latency_s
        rows.append((setting, gpus, *logs, logs[1] / logs[0], ours, ours / logs[1]))
    columns = (
        Column("setting"),
        Column("GPUs of swiftdiffusion"),
        Column("diffusers, logs", "1/GPU-minute", 1),
        Column("swiftdiffusion, logs", "1/GPU-minute", 1),
        Column("swiftdiffusion to diffusers", "x", 2),
        Column("takeup, simulated", "1/GPU-minute", 1),
        Column("takeup to swiftdiffusion", "x", 2),
    )
    note = "GPUs of swiftdiffusion: two, and two for every ControlNet"
    return Table("Images for a GPU-minute", columns, tuple(rows), note)


def _chart(part: Numbers, outcomes: list[list[QueueOutcome]]) -> Series:
    rows = [
        {"setting": setting, "design": outcome.design, "seconds": outcome.served[0].latency_s}
        for setting, row in zip(part["settings"], outcomes, strict=True)
        for outcome in row
    ]
    return Series("Seconds of an image", "setting", "seconds", tuple(rows), "design", y_unit="s", kind="bar")


def _images_per_used_gpu_minute(outcome: QueueOutcome) -> float:
    """Images per GPU-minute if every request used only the GPUs for its ControlNets."""
    used = ((one.end_s - one.start_s, one.arrival.num_controls) for one in outcome.done)
    return 60 * len(outcome.done) / sum(seconds * _num_gpus("swiftdiffusion", number) for seconds, number in used)
