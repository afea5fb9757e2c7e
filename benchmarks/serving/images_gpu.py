"""The step engine on one accelerator beside stock diffusers: `python -m benchmarks.serving images-gpu [--part table]`.

The part `table`, all of it, is what `serving.py --device cuda` runs; `ways` compares ways to compute a step, `profile`
says where its time goes (see serving_ways.py).

SDXL at 1024x1024, 50 steps, bfloat16, random weights (times do not depend on their values), one process. Seconds are
from the prompt to finished latents, medians of three; stock pipelines make the same requests once in the same run,
LoRAs loaded, fused and taken out again as their users do. The floor is the arithmetic of a request at 790 TFLOP/s, what
a large matrix product reaches on this card. Every row says how far its image is from that of stock. What changes images
(products in eight bits, ControlNets that are asked again only when their residuals are predicted to have changed by a
fifth) has a table of its own and two bars, which name it.
With `--tiny` the same on tiny models: does it run, not how fast.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.serving.contenders import KINDS, MOST, RANK, Bench, Kind, copied, decoded, now_s, say, together
from benchmarks.serving.models import Models
from benchmarks.serving.step_variants import OPERATIONS, WAYS, measured_ways, profile_tables
from benchmarks.support.dated import options_of, publish, versions
from benchmarks.support.kernel_table import Limit, choices_table
from takeup.core.report import Check, Column, Report, Table
from takeup.scenes.judge import psnr, ssim
from takeup.serving.diffusion.addons.controlnet.addon import Controls
from takeup.serving.diffusion.addons.lora.addon import LoraPacker, Loras, StackedWeights
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.execution.autotune import AUTOTUNER
from takeup.serving.diffusion.execution.executors import DEFAULT_OPTIONS, CudaGraphExecutor

NUM_SWAPS, NUM_TOGETHER, NUM_SHORT = 1000, 4, 10
SWITCHES = OPERATIONS | {"lean"}
MAX_CHANGE = 0.2
REUSED, FASTEST = ", residuals reused", ", eight bits, residuals reused"
Stock = dict[str, tuple[float, float]]
Latents = dict[str, torch.Tensor]
Asked = Callable[[], float]
Row = tuple[str, float, float, float, float, float, float, float | None, float | None, float | None]
COLUMNS = (
    Column("request"),
    Column("stock", "s", 2),
    Column("ours", "s", 3),
    Column("faster", "x", 2),
    Column("floor", "s", 2),
    Column("of the floor", "", 2),
    Column("images per GPU-minute", "", 1),
    Column("cosine", "", 5),
    Column("PSNR", "dB", 1),
    Column("SSIM", "", 4),
)


# Measuring ------------------------------------------------------------------------------------------------------------


def stock_side(bench: Bench) -> tuple[Stock, Latents]:
    """Stock: seconds for LoRAs and for the image of every kind, and the latents."""
    seconds, latents = {}, {}
    bench.stock(bench.request(Kind(3, 0), num_steps=2))  # warm
    for kind in KINDS:
        lora_s, image_s, latents[kind.name] = bench.stock(bench.request(kind))
        seconds[kind.name] = lora_s, image_s
        say("stock", kind.name, f"LoRAs {lora_s:.2f} s, image {image_s:.2f} s")
    return seconds, latents


def kind_row(
    bench: Bench,
    engine: StepEngine,
    kind: Kind,
    stock: tuple[Stock, Latents],
    note: str = "",
    asked: Asked = lambda: 1.0,
) -> Row:
    """One kind of request alone. `asked` says afterwards in which share of the steps ControlNets were."""
    stock_s, theirs = sum(stock[0][kind.name]), stock[1][kind.name]
    together(engine, [bench.request(kind, num_steps=3)])  # compile, record, load
    times = [together(engine, [bench.request(kind)]) for _ in range(1 if bench.is_tiny else 3)]
    seconds, floor = median(one[0] for one in times), kind.floor_s(bench.num_steps, asked())
    alike = likeness(engine, times[0][1][0], theirs)
    say("ours", kind.name, note, f"{seconds:.3f} s, {stock_s / seconds:.1f} x, cosine, PSNR, SSIM:", *alike)
    return (kind.name + note, stock_s, seconds, stock_s / seconds, floor, floor / seconds, 60 / seconds, *alike)


def crowd_row(bench: Bench, engine: StepEngine, kinds: Sequence[Kind], stock_s: Stock, name: str) -> Row:
    """Several requests at once."""
    requests = [bench.request(kind, seed) for seed, kind in enumerate(kinds)]
    seconds, _ = together(engine, requests)
    theirs, floor = (
        sum(values) for values in ((sum(stock_s[k.name]) for k in kinds), (k.floor_s(bench.num_steps) for k in kinds))
    )
    say(name, f"{seconds:.2f} s")
    per_minute = 60 * len(requests) / seconds
    return (name, theirs, seconds, theirs / seconds, floor, floor / seconds, per_minute, None, None, None)


def batch_row(bench: Bench, compute: CudaGraphExecutor, stock_s: Stock) -> Row:
    """Requests with the same add-ons that share every call."""
    engine, loras = bench.engine(compute, bench.models, max_rows=2 * NUM_TOGETHER)
    together(engine, [bench.request(MOST, seed, num_steps=3) for seed in range(NUM_TOGETHER)])
    row = crowd_row(bench, engine, [MOST] * NUM_TOGETHER, stock_s, f"{MOST.name}, {NUM_TOGETHER} in a call")
    loras.close()
    return row


def likeness(engine: StepEngine, ours: torch.Tensor, theirs: torch.Tensor) -> tuple[float, float, float]:
    """Cosine of the latents, PSNR and SSIM of the images."""
    pixels = [_numbers(decoded(engine, latents)[0]) for latents in (ours, theirs)]
    pair = [one[None] for one in pixels]
    cosine = torch.cosine_similarity(ours.double().flatten(), theirs.double().flatten(), dim=0)
    return float(cosine), float(psnr(*pair)[0]), float(ssim(*pair)[0])


def different_rows(bench: Bench, compute: CudaGraphExecutor) -> list[tuple[str, float]]:
    """Milliseconds of a step of four requests with different LoRAs, merged in turn."""
    kinds = [Kind(0, 0), Kind(0, 1), Kind(0, 2), Kind(0, 1)]
    engine, loras = bench.engine(compute, bench.models)
    for num_steps in (2, NUM_SHORT):
        seconds, _ = together(engine, [bench.request(k, seed, num_steps) for seed, k in enumerate(kinds)])
    loras.close()
    row = ("four requests, three sets, merged in turn", seconds / NUM_SHORT * 1e3)
    say(*row)
    return [row]


def swap_rows(loras: Loras, num_swaps: int) -> tuple[list[tuple[str, float]], bool]:
    """Milliseconds of a change of LoRAs, and whether many changes leave the weights as they were."""
    weights = loras.weights
    assert isinstance(weights, StackedWeights)
    weights.use()
    before = [stack.block.clone() for stack in weights._stacks.stacks]
    first, second = (((lora, 0.8),) for lora in _two_loras(loras))
    begin = now_s()
    LoraPacker(weights._stacks, "unet").pack(first[0][0])
    packing_ms = (now_s() - begin) * 1e3
    rows = [
        ("one LoRA, from pinned memory of the host", _swap_ms(weights, (first, second), is_fresh=True)),
        ("one LoRA, on the device already", _swap_ms(weights, (first, second), is_fresh=False)),
        ("two LoRAs, from pinned memory of the host", _swap_ms(weights, ((*first, *second), first), is_fresh=True)),
        ("packing a LoRA the first time, beside the loop", packing_ms),
    ]
    staged = [weights.stage(one) for one in (first, second)]
    for number in range(num_swaps):
        weights.use(staged[number % 2])
    weights.use()
    return rows, all(torch.equal(old, stack.block) for old, stack in zip(before, weights._stacks.stacks, strict=True))


def _two_loras(loras: Loras) -> list[Any]:
    return next([lora for lora, _ in staged.loras] for staged in loras._staged.values() if len(staged.loras) == 2)


def _swap_ms(weights: StackedWeights, sets: Sequence[Any], is_fresh: bool) -> float:
    staged = [weights.stage(one) for one in sets]
    for one in staged:
        weights.use(one)
    times = []
    for number in range(10):
        one = weights.stage(sets[number % 2]) if is_fresh else staged[number % 2]
        begin = now_s()
        weights.use(one)
        times.append((now_s() - begin) * 1e3)
    return median(times)


# The report -----------------------------------------------------------------------------------------------------------


def report(device: str, is_tiny: bool, num_steps: int, without: Set[str] = frozenset()) -> Report:
    """Stock, then ours, then the swaps, then what changes images."""
    torch.backends.cudnn.benchmark = True
    AUTOTUNER.off = frozenset(without & OPERATIONS)
    options = None if is_tiny else DEFAULT_OPTIONS
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        bench = Bench(device, is_tiny, num_steps, Path(folder))
        stock = stock_side(bench)
        others = copied(bench.models)
        compute = CudaGraphExecutor(options, is_lean="lean" not in without)
        engine, loras = bench.engine(compute, bench.models)
        rows = [kind_row(bench, engine, one, stock) for one in KINDS]
        rows.append(crowd_row(bench, engine, KINDS * 2, stock[0], "mixed, 8 at once"))
        swaps, is_same = swap_rows(loras, 30 if is_tiny else NUM_SWAPS)
        say("swaps", swaps, is_same)
        loras.close()
        reused_row, reused = _reusing(bench, compute, stock, bench.models, REUSED)
        rows.append(batch_row(bench, compute, stock[0]))
        different = different_rows(bench, compute)
        eight = CudaGraphExecutor(options, eight_bits=True)
        eight_engine, eight_loras = bench.engine(eight, others)
        changed = [kind_row(bench, eight_engine, one, stock, ", eight bits") for one in (KINDS[0], MOST)]
        eight_loras.close()
        changed += [reused_row, _reusing(bench, eight, stock, others, FASTEST)[0]]
        decode_ms = _decode_ms(engine, stock[1][MOST.name])
    return Report(
        title="SDXL with add-ons on one accelerator" + (" (tiny models)" if is_tiny else ""),
        domain="serving",
        scenario={
            "steps": num_steps,
            "size_px": bench.models.size_px,
            "rank": RANK,
            "device": device,
            "without": sorted(without),
        },
        seed=0,
        tables=(
            Table("From the prompt to latents", COLUMNS, tuple(rows), "Stock, LoRAs + image: " + _said(stock[0])),
            Table(
                "Accelerated: other images", COLUMNS, tuple(changed), f"{reused} Random weights feel little of this."
            ),
            Table("Changing LoRAs", (Column("swap"), Column("time", "ms", 2)), tuple(swaps)),
            Table("Different LoRAs at once", (Column("step"), Column("time", "ms", 1)), tuple(different)),
            choices_table(AUTOTUNER.made),
        ),
        checks=tuple(_checks({row[0]: row for row in (*rows, *changed)}, swaps[0][1], is_same)),
        notes=(
            f"Decoding comes after the latents, in the thread of the caller: {decode_ms:.0f} ms on both sides.",
            f"LoRAs of rank {RANK} for all linear layers of attention blocks: {bench.lora_bytes / 2**20:.0f} MiB each.",
            "Ours has read and packed the LoRAs before, for its store keeps them; stock loads them for every request.",
            versions(["torch", "diffusers", "transformers"]),
            torch.cuda.get_device_name() if device == "cuda" else "no accelerator",
        ),
    )


def _reusing(
    bench: Bench, compute: CudaGraphExecutor, stock: tuple[Stock, Latents], models: Models, note: str
) -> tuple[Row, str]:
    """ControlNets are asked when what they said is predicted to have changed too much; the row, and what was found."""
    engine, loras = bench.engine(compute, models, max_change=MAX_CHANGE)
    reuse = next(add_on for add_on in engine.add_ons if isinstance(add_on, Controls)).reuse
    row = kind_row(bench, engine, MOST, stock, note, lambda: reuse.num_asked / (reuse.num_asked + reuse.num_reused))
    loras.close()
    asked = reuse.num_asked / (reuse.num_asked + reuse.num_reused)
    found = f"Residuals: predicted within {MAX_CHANGE:g}, asked in {asked:.0%} of the steps,"
    return row, f"{found} largest change found {reuse.largest_change:.2f}."


def _checks(rows: dict[str, Row], swap_ms: float, is_same: bool) -> Iterator[Check]:
    most, crowd = rows[MOST.name], rows[f"{MOST.name}, {NUM_TOGETHER} in a call"]
    yield Check.at_most("no add-on", rows["0C/0L"][2], 1.3, unit="s")
    yield Check.at_most("3 ControlNets and 2 LoRAs", most[2], 3.0, unit="s")
    yield Check.at_least("3C/2L, faster than stock", most[3], 5.0, unit="x")
    for note in (REUSED, FASTEST):
        yield Check.at_least(f"3C/2L{note}, faster than stock", rows[MOST.name + note][3], 5.0, unit="x")
    yield Check.at_least("3C/2L, images per GPU-minute", max(most[6], crowd[6]), 20.0)
    yield Check.at_least("mixed add-ons, throughput beside stock", rows["mixed, 8 at once"][3], 2.0, unit="x")
    yield Check.at_most("LoRA swap", swap_ms, 10.0, unit="ms")
    yield Check.at_most("LoRA swap, share of a request", swap_ms / 1e3 / rows["0C/1L"][2], 0.03)
    yield Check.at_least(f"{NUM_SWAPS} swaps leave the weights bit for bit", float(is_same), 1.0)


def _said(stock_s: Stock) -> str:
    return "; ".join(f"{name} {lora_s:.2f} + {image_s:.2f} s" for name, (lora_s, image_s) in stock_s.items())


def _decode_ms(engine: StepEngine, latents: torch.Tensor) -> float:
    begin = now_s()
    decoded(engine, latents)
    return (now_s() - begin) * 1e3


def _numbers(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().double().numpy()


# Parts ----------------------------------------------------------------------------------------------------------------


def part(name: str, device: str, is_tiny: bool, num_steps: int, ways: Sequence[str], limit: Limit) -> Report:
    """One part, without stock beside it."""
    torch.backends.cudnn.benchmark = True
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        bench = Bench(device, is_tiny, num_steps, Path(folder))
        if name == "ways":
            tables = [measured_ways(bench, list(ways), limit)]
        else:
            tables = [table for way in ways for table in profile_tables(bench, way)]
    return Report(
        title=f"Steps of SDXL on one accelerator: {name}",
        domain="serving",
        scenario={"steps": num_steps, "device": device, "ways": list(ways)},
        seed=0,
        tables=(*tables, choices_table(AUTOTUNER.made)),
        notes=(
            versions(["torch", "diffusers", "transformers"]),
            torch.cuda.get_device_name() if device == "cuda" else "no accelerator",
        ),
    )


def main() -> int:
    """Run the part that was asked for."""
    parser = options_of(__doc__)
    parser.add_argument("--part", choices=("table", "ways", "profile"), default="table")
    parser.add_argument(
        "--ways", default="compiled,all", metavar="A,B", help=f"every, or of {', '.join(WAYS)} (compiled,all)"
    )
    parser.add_argument("--without", default="", metavar="A,B", help=f"of {', '.join(sorted(SWITCHES))}")
    parser.add_argument("--steps", type=int, default=50, metavar="N", help="steps of an image (50)")
    parser.add_argument("--limit-s", type=float, default=540.0, metavar="S", help="leave out ways beyond this (540)")
    parser.add_argument("--every-convolution", action="store_true", help="let cuDNN try all it has, not the first ten")
    parser.add_argument("--tiny", action="store_true", help="tiny models on a CPU: does it run, not how fast")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")  # those of the packages below
    if options.every_convolution:
        torch.backends.cudnn.benchmark_limit = 0
    where, limit = "cpu" if options.tiny else "cuda", Limit(options.limit_s)
    if options.part == "table":
        without = frozenset(options.without.split(",")) & SWITCHES
        return publish(report(where, options.tiny, options.steps, without), "serving-gpu", options)
    ways = [name for name in WAYS if options.ways == "every" or name in options.ways.split(",")]
    made = part(options.part, where, options.tiny, options.steps, ways, limit)
    return publish(made, f"serving-gpu-{options.part}", options)
