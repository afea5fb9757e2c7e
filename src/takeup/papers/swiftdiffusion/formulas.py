"""Results of formulas: speed-ups, bytes on the wire, the bound K, sums of LoRAs, and drift by subtraction."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from takeup.core.report import Cell, Check, Column, Table
from takeup.core.seeds import Streams
from takeup.papers.findings import Findings
from takeup.serving.policies.lateness import bound_for, measured_bound

Numbers: TypeAlias = dict[str, Any]
Floats: TypeAlias = npt.NDArray[np.float32]
NUMBER_FORMATS = ("bfloat16", "float16", "float32")


def speedups(expected: Numbers) -> Findings:
    """ControlNets concurrent with the U-Net encoder: Gustafson's law, operation counts, and measured speed-ups."""
    law, flops = expected["speedup"], expected["flops"]
    rows: list[tuple[Cell, ...]] = []
    checks = []
    for place, number in enumerate(law["num_controls"]):
        gustafson = law["serial_share"] + (1 - law["serial_share"]) * (number + 1)
        one_by_one = flops["encoder_t"] + flops["decoder_t"] + number * flops["control_t"]
        bound = one_by_one / (flops["decoder_t"] + max(flops["encoder_t"], flops["control_t"]))
        rows.append(
            (number, law["gustafson"][place], gustafson, flops["speedup"][place], bound, law["achieved"][place])
        )
        checks += [
            Check.near(f"{number} ControlNets, Gustafson", gustafson, law["gustafson"][place], 0.005, unit="x"),
            Check.near(
                f"{number} ControlNets, by operations",
                bound,
                flops["speedup"][place],
                flops["tolerance"],
                unit="x",
                source="measured",
            ),
            Check.at_least(f"{number} ControlNets, bound above what was reached", bound, law["achieved"][place]),
        ]
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
    rows: list[tuple[Cell, ...]] = [
        (
            number,
            strength,
            bound_for(bound, steps, number, strength),
            bound_for(part["artefact_bound"], steps, number, strength),
        )
        for number, strength in cases
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
            factor = max(mine / theirs, theirs / mine)
            checks.append(
                Check.at_most(
                    f"{name}, {swaps} swaps: factor to theirs", factor, part["tolerance_factor"], source="measured"
                )
            )
    columns = (
        Column("format"),
        *(Column(f"{swaps}, theirs", digits=9) for swaps in part["swaps"]),
        *(Column(f"{swaps}, ours", digits=9) for swaps in part["swaps"]),
        Column("from a copy"),
    )
    note = "relative error of the weights after so many swaps; other weights and LoRAs, so factors are compared"
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
