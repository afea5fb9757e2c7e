"""SDXL and Flux to pixels on one accelerator beside its peers: `python -m benchmarks.serving peers [--only sdxl,flux]`.

SDXL (1024x1024, 50 steps) and Flux dev (1024x1024, 28 steps) in bfloat16 with random weights, one process. Each row is
the median of five images (three of eager stock), one at a time, from the prompt to pixels on the device, and the PSNR
of the first image against that of eager stock with the same seed. Peers: diffusers with `torch.compile` (fullgraph,
channels-last; Flux by blocks, as its guide advises), DeepCache, cache-dit, and the step caches of diffusers. Random
weights change less from step to step than trained ones, so that the PSNR of whatever reuses a step is a limit for good
cases. LoRAs are loaded before the clock starts, on both sides. Rows are written as they come; what does not fit into
`--limit-s` is left out.
With `--tiny` the same on tiny models on a CPU: does it run, not how fast.
"""

from __future__ import annotations

import copy
import gc
import os
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import torch

import benchmarks.support.without_numba  # noqa: F401  before takeup
from benchmarks.serving.contenders import MOST, Bench, Kind, now_s, say
from benchmarks.serving.editing_served import pipeline_of
from benchmarks.serving.models import Models, full_clip, made_on
from benchmarks.support.dated import dated, options_of, publish, versions
from benchmarks.support.kernel_table import Limit, choices_table
from benchmarks.support.markdown import to_markdown
from takeup.core.files import write_atomically
from takeup.core.report import Check, Column, Report, Table
from takeup.scenes.judge import psnr
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.execution.autotune import AUTOTUNER
from takeup.serving.diffusion.execution.executors import DEFAULT_OPTIONS, CudaGraphExecutor
from takeup.serving.model import Request

NUM_IMAGES, MAX_CHANGE = 5, 0.2
MOST_DB = 50.0
"""PSNR between two exact computations in bfloat16, about."""
PLAIN, LEAST_AHEAD = Kind(0, 0), 1.25
Make = Callable[[int], torch.Tensor]
Row = tuple[float, str, Callable[[], None]]
"""About how many seconds it takes, what it is, and how to measure it."""
COLUMNS = (
    Column("request"),
    Column("computed by"),
    Column("p50", "s", 3),
    Column("fastest", "s", 3),
    Column("slowest", "s", 3),
    Column("PSNR to eager", "dB", 1),
    Column("first image", "s", 1),
)


@dataclass
class Found:
    """Rows so far, the reference image of each request, and where they are written after each row."""

    file: Path | None
    num_images: int = NUM_IMAGES
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    images: dict[str, Any] = field(default_factory=dict)

    def measure(self, request: str, name: str, make: Make, num_images: int | None = None) -> None:
        """Make images and note their times; the first row of a request is the reference."""
        begin = now_s()
        first = make(0)
        first_s = now_s() - begin
        pixels = first[0].detach().float().cpu().double().numpy()
        times = [self._timed(make, seed) for seed in range(num_images or self.num_images)]
        nearness_db = float(psnr(pixels[None], self.images.setdefault(request, pixels)[None])[0])
        self.rows.append((request, name, median(times), min(times), max(times), nearness_db, first_s))
        say(request, name, f"{median(times):.3f} s, {nearness_db:.1f} dB, first {first_s:.1f} s")
        if self.file is not None:
            write_atomically(self.file, to_markdown(dated(replace(report_of(self.rows), checks=()))))

    @staticmethod
    def _timed(make: Make, seed: int) -> float:
        begin = now_s()
        make(seed)
        return now_s() - begin


def stock(pipeline: Any, num_steps: int, size_px: int, **options: Any) -> Make:
    """Images of a pipeline of diffusers."""
    named = {"height": size_px, "width": size_px, "num_inference_steps": num_steps, "output_type": "pt", **options}

    def make(seed: int) -> torch.Tensor:
        found: torch.Tensor = pipeline("a cat", generator=torch.Generator("cpu").manual_seed(seed), **named).images
        return found

    return make


def ours(engine: StepEngine, request: Request) -> Make:
    """Images of the step engine."""

    def make(seed: int) -> torch.Tensor:
        ticket = engine.submit(replace(request, seed=seed))
        engine.run()
        return engine.image(ticket)

    return make


# SDXL -----------------------------------------------------------------------------------------------------------------

EIGHT = "ours, eight bits"
GUIDED = {"guidance_scale": 5.0}


def sdxl(found: Found, is_tiny: bool, folder: Path) -> Iterator[Row]:
    """The rows of SDXL, the most important ones first."""
    bench = Bench("cpu" if is_tiny else "cuda", is_tiny, 3 if is_tiny else 50, folder)
    usual: Any = partial(stock, num_steps=bench.num_steps, size_px=bench.models.size_px, **GUIDED)
    plain, own, merged = bench.models.plain, clone(bench.models), merged_models(bench)
    options = None if is_tiny else DEFAULT_OPTIONS
    found.measure("SDXL", "stock, eager", usual(plain), 3)
    found.measure("SDXL 3C/2L", "stock, eager", usual(merged.steered, **controls_of(bench)), 1)
    yield 0, "ours", lambda: measure_ours(found, bench, CudaGraphExecutor(options), "ours, lossless", 0.0)
    eight = CudaGraphExecutor(options, eight_bits=True)
    yield 75, EIGHT, lambda: measure_ours(found, bench, eight, EIGHT, MAX_CHANGE)
    with deep_cache(plain):
        yield 15, "DeepCache", lambda: found.measure("SDXL", "DeepCache, interval 3", usual(plain))
    compile_stock(own.plain.unet, own.plain.vae, mode=None if is_tiny else "reduce-overhead")
    yield 130, "SDXL compiled", lambda: found.measure("SDXL", "stock, compiled", usual(own.plain))
    yield 45, "first image", lambda: first_images(found, bench, options)


def sdxl_controls(found: Found, is_tiny: bool, folder: Path) -> Iterator[Row]:
    """Compiled stock with ControlNets and merged LoRAs."""
    bench = Bench("cpu" if is_tiny else "cuda", is_tiny, 3 if is_tiny else 50, folder)
    steered = merged_models(bench).steered
    compile_stock(steered.unet, steered.vae, *steered.controlnet.nets)
    make = stock(steered, bench.num_steps, bench.models.size_px, **GUIDED, **controls_of(bench))
    yield 130, "3C/2L compiled", lambda: found.measure("SDXL 3C/2L", "stock, compiled", make)


def controls_of(bench: Bench) -> dict[str, Any]:
    """The ControlNets of a request as arguments of stock."""
    uses = bench.request(MOST).controls
    return {"image": [use.image for use in uses], "controlnet_conditioning_scale": [use.scale for use in uses]}


def measure_ours(found: Found, bench: Bench, compute: CudaGraphExecutor, name: str, max_change: float) -> None:
    """Without add-ons and with all of them, on copies of the networks."""
    models = clone(bench.models)
    engine, loras = bench.engine(compute, models)
    found.measure("SDXL", name, ours(engine, bench.request(PLAIN)))
    other, more = bench.engine(compute, models, max_change=max_change)
    note = name + (", residuals reused" if max_change else "")
    found.measure("SDXL 3C/2L", note, ours(other, bench.request(MOST)))
    for one in (loras, more):
        one.close()
    free()


def first_images(found: Found, bench: Bench, options: dict[str, Any] | None) -> None:
    """The first image of a size that nothing was prepared for, as a server makes it; the next ones are captured."""
    size: dict[str, Any] = {"width_px": bench.models.size_px, "height_px": bench.models.size_px * 3 // 4}
    narrow = {"width": size["width_px"], "height": size["height_px"]}
    found.measure("SDXL 4:3", "stock, eager", stock(bench.models.plain, bench.num_steps, 0, **GUIDED, **narrow), 1)
    compute = CudaGraphExecutor(options, eager_first=True)
    engine, loras = bench.engine(compute, clone(bench.models))
    found.measure("SDXL 4:3", "ours, eager first", ours(engine, replace(bench.request(PLAIN), **size)), 1)
    loras.close()


def clone(models: Models) -> Models:
    """The same networks once more."""
    parts = {name: _copied(part) for name, part in models.plain.components.items()}
    nets = {name: copy.deepcopy(net) for name, net in models.nets.items()}
    plain = type(models.plain)(**parts, add_watermarker=False)
    steered = type(models.steered)(**parts, controlnet=list(nets.values()), add_watermarker=False)
    for pipeline in (plain, steered):
        pipeline.set_progress_bar_config(disable=True)
    return replace(models, plain=plain, steered=steered, nets=nets)


def _copied(part: Any) -> Any:
    return copy.deepcopy(part) if isinstance(part, torch.nn.Module) else part


def merged_models(bench: Bench) -> Models:
    """Copies with the LoRAs of a request in their weights, as users of stock merge them."""
    models, request = clone(bench.models), bench.request(MOST)
    pipeline = models.steered
    for use in request.loras:
        pipeline.load_lora_weights(bench.files[use.name], adapter_name=use.name)
    pipeline.set_adapters([use.name for use in request.loras], [use.scale for use in request.loras])
    pipeline.fuse_lora(components=["unet"])
    pipeline.unload_lora_weights()
    return models


@contextmanager
def deep_cache(pipeline: Any) -> Iterator[None]:
    """Every third step computes the whole U-Net, the others its outermost blocks."""
    helper = import_module("DeepCache").DeepCacheSDHelper(pipe=pipeline)
    helper.set_params(cache_interval=3, cache_branch_id=0)
    helper.enable()
    try:
        yield
    finally:
        helper.disable()


def compile_stock(unet: Any, vae: Any, *nets: Any, mode: str | None = None) -> None:
    """As in the guide of diffusers to fast inference."""
    unet.to(memory_format=torch.channels_last).compile(fullgraph=True, mode=mode)
    vae.to(memory_format=torch.channels_last).decoder.compile(fullgraph=True)
    for net in nets:
        net.to(memory_format=torch.channels_last).compile(fullgraph=True)


# Flux dev -------------------------------------------------------------------------------------------------------------


def flux(found: Found, is_tiny: bool, folder: Path) -> Iterator[Row]:
    """The rows of Flux dev, the most important ones first."""
    pipeline = flux_pipeline(is_tiny)
    num_steps, size_px = (3, 32) if is_tiny else (28, 1024)
    usual = stock(pipeline, num_steps, size_px, guidance_scale=3.5)
    request = Request("a cat", num_steps=num_steps, guidance=3.5, width_px=size_px, height_px=size_px)
    found.measure("Flux dev", "stock, eager", usual, 3)
    lossless = partial(measure_flux, found, pipeline, request, "ours, lossless", is_tiny, is_eight=False)
    yield 45, "Flux, ours", lossless
    for name in ("FirstBlockCache", "TaylorSeerCache"):
        pipeline.transformer.enable_cache(getattr(import_module("diffusers"), f"{name}Config")())
        yield 15, name, partial(found.measure, "Flux dev", name, usual)
        pipeline.transformer.disable_cache()
    dit = import_module("cache_dit")
    config = dit.DBCacheConfig(Fn_compute_blocks=1 if is_tiny else 8)
    calibrated = {"calibrator_config": dit.TaylorSeerCalibratorConfig(taylorseer_order=1)}
    for name, others in (("cache-dit", {}), ("cache-dit, TaylorSeer", calibrated)):
        dit.enable_cache(pipeline, cache_config=config, **others)
        yield 15, name, partial(found.measure, "Flux dev", name, usual)
        dit.disable_cache(pipeline)
    own = flux_pipeline(is_tiny)
    own.transformer.compile_repeated_blocks(fullgraph=True)
    own.vae.to(memory_format=torch.channels_last).decoder.compile(fullgraph=True)
    compiled = stock(own, num_steps, size_px, guidance_scale=3.5)
    yield 40, "Flux compiled", partial(found.measure, "Flux dev", "stock, compiled", compiled)
    yield 45, "Flux, eight bits", partial(measure_flux, found, pipeline, request, EIGHT, is_tiny, is_eight=True)
    dit.enable_cache(own, cache_config=config)
    yield 40, "cache-dit compiled", partial(found.measure, "Flux dev", "cache-dit, compiled", compiled)


def measure_flux(found: Found, pipeline: Any, request: Request, name: str, is_tiny: bool, *, is_eight: bool) -> None:
    """On a copy of the networks."""
    own = type(pipeline)(**{name: _copied(part) for name, part in pipeline.components.items()})
    compute = CudaGraphExecutor(None if is_tiny else DEFAULT_OPTIONS, eight_bits=is_eight)
    found.measure("Flux dev", name, ours(StepEngine(own, compute=compute), request))
    free()


def flux_pipeline(is_tiny: bool) -> Any:
    """Flux dev with text encoders of full size, or a tiny one."""
    if is_tiny:
        return pipeline_of("flux", "cpu", is_tiny=True)
    pipeline, transformers = pipeline_of("flux", "cuda", is_tiny=False), import_module("transformers")
    tokens = {"vocab_size": len(pipeline.tokenizer_2), "decoder_start_token_id": 0}
    shape = {"d_model": 4096, "d_ff": 10240, "d_kv": 64, "num_layers": 24, "num_heads": 64}
    config = transformers.T5Config(**shape, **tokens, feed_forward_proj="gated-gelu")
    with made_on("cuda", torch.bfloat16):
        pipeline.text_encoder_2 = transformers.T5EncoderModel(config).eval().requires_grad_(False)
        pipeline.text_encoder = full_clip(pipeline.tokenizer, "CLIPTextModel", 768, 12, 12, "quick_gelu")
    return pipeline


def free() -> None:
    """Memory of networks that are gone."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


# The report -----------------------------------------------------------------------------------------------------------

PARTS = {"sdxl": sdxl, "flux": flux, "controls": sdxl_controls}
BARS = (
    ("SDXL", "ours, lossless", 1.30),
    ("SDXL", EIGHT, 1.12),
    ("SDXL 3C/2L", "ours, lossless", 2.95),
    ("SDXL 3C/2L", f"{EIGHT}, residuals reused", 1.7),
    ("Flux dev", "ours, lossless", 3.5),
)
LOSSLESS = ("stock, eager", "stock, compiled")


def report_of(rows: Sequence[tuple[Any, ...]]) -> Report:
    """The table, and what it is judged by."""
    return Report(
        title="SDXL and Flux to pixels beside their peers",
        domain="serving",
        scenario={"images": NUM_IMAGES, "max_change": MAX_CHANGE},
        seed=0,
        tables=(Table("From the prompt to pixels", COLUMNS, tuple(rows)), choices_table(AUTOTUNER.made)),
        checks=tuple(checks_of({row[:2]: row for row in rows})),
        notes=(
            versions(["torch", "diffusers", "transformers", "peft", "cache_dit", "DeepCache"]),
            torch.cuda.get_device_name() if torch.cuda.is_available() else "no accelerator",
            "First image: with compilation and capture, where there is any.",
        ),
    )


def checks_of(rows: dict[tuple[str, str], tuple[Any, ...]]) -> Iterator[Check]:
    """Bars in seconds; ours against the fastest lossless peer, and against the fastest lossy one that is as like."""
    for key, bar in ((one[:2], one[2]) for one in BARS):
        if key in rows:
            yield Check.at_most(" ".join(key), rows[key][2], bar, unit="s")
    for request, least in (("SDXL", LEAST_AHEAD), ("SDXL 3C/2L", LEAST_AHEAD), ("Flux dev", 1.0)):
        own = [row for (name, kind), row in rows.items() if name == request and kind.startswith("ours")]
        peers = [row for (name, kind), row in rows.items() if name == request and not kind.startswith("ours")]
        exact = [row[2] for row in peers if row[1] in LOSSLESS]
        lossy = [row for row in peers if row[1] not in LOSSLESS]
        if (request, "ours, lossless") in rows and len(exact) == len(LOSSLESS):
            ahead = min(exact) / rows[request, "ours, lossless"][2]
            yield Check.at_least(f"{request}, lossless: faster than the best peer", ahead, least, unit="x")
        for peer in lossy:
            best = min((row[2] for row in own if row[5] >= min(peer[5], MOST_DB)), default=None)
            if best is not None:
                yield Check.at_least(f"{request}: faster than {peer[1]}, at its PSNR", peer[2] / best, 1.0, unit="x")
    if ("SDXL 4:3", "ours, eager first") in rows:
        ratio = rows["SDXL 4:3", "ours, eager first"][6] / rows["SDXL 4:3", "stock, eager"][6]
        yield Check.at_most("the first image of a size, of eager stock", ratio, 1.0, unit="x")


def main() -> int:
    """Measure what was asked for."""
    parser = options_of(__doc__)
    parser.add_argument("--only", default=",".join(PARTS), metavar="A,B", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--limit-s", type=float, default=560.0, metavar="S", help="leave out rows beyond this (560)")
    parser.add_argument("--partial", type=Path, metavar="FILE", help="also write the table there after each row")
    parser.add_argument("--tiny", action="store_true", help="tiny models on a CPU: does it run, not how fast")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    warnings.simplefilter("ignore")  # those of the packages below
    torch.backends.cudnn.benchmark = True
    found, limit = Found(options.partial, 1 if options.tiny else NUM_IMAGES), Limit(options.limit_s)
    for name in options.only.split(","):
        with tempfile.TemporaryDirectory() as folder, torch.no_grad(), reported(name):
            for seconds, what, measure in PARTS[name](found, options.tiny, Path(folder)):
                if limit.allows(seconds, what):
                    with reported(what):
                        measure()
        free()
    return publish(report_of(found.rows), "serving-peers", options)


@contextmanager
def reported(name: str) -> Iterator[None]:
    """A row that fails does not end the others."""
    try:
        yield
    except Exception:
        say(name, "FAILED")
        traceback.print_exc()
