"""Steps of SDXL on one accelerator, one way to compute them beside another, and where their time goes.

Every way has networks of its own, with the same weights. A step of the denoiser, of one ControlNet alone, of three in
streams beside each other, and all of that in one step, as recorded graphs; then whole images. Servers do `all` of
it; `compiled` has none of it, others have one thing each. Lines are printed as they come, for runs that are cut short.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from statistics import median
from typing import Any

import torch

from benchmarks.serving.contenders import MOST, Bench, Kind, copied, now_s, say, together
from benchmarks.serving.models import FULL_SHAPE
from benchmarks.support.full_size import FULL_SIZE
from benchmarks.support.kernel_table import Kernel, Limit, counted, play_ms, profiled, time_table
from takeup.core.report import Column, Table
from takeup.serving.diffusion.addons.controlnet.workers import StreamWorker
from takeup.serving.diffusion.engine.steps import StepEngine
from takeup.serving.diffusion.execution.autotune import AUTOTUNER
from takeup.serving.diffusion.execution.cuda_graph import cuda
from takeup.serving.diffusion.execution.executors import DEFAULT_OPTIONS, CudaGraphExecutor

# Products in the fastest of many tiles, which takes minutes to find where nothing is cached.
AUTOTUNE_OPTIONS = DEFAULT_OPTIONS | {"max_autotune_gemm": True, "max_autotune_gemm_backends": "ATEN,TRITON"}
OPERATIONS = frozenset({"attention", "norm", "gate"})
TUNING_S = 240


@dataclass(frozen=True, slots=True)
class SomeWay:
    """Operations whose way is chosen by measuring, lean blocks, tuned compilation; about how long it takes."""

    chosen: frozenset[str]
    is_lean: bool = False
    is_tuned: bool = False
    seconds: float = 45


WAYS = {
    "compiled": SomeWay(frozenset(), seconds=70),
    "attention": SomeWay(frozenset({"attention"})),
    "lean": SomeWay(frozenset({"norm", "gate"}), is_lean=True),
    "all": SomeWay(OPERATIONS, is_lean=True),
    "tuned": SomeWay(frozenset({"attention"}), is_tuned=True, seconds=TUNING_S),
}
COLUMNS = (
    Column("way"),
    Column("denoiser", "ms", 2),
    Column("a ControlNet", "ms", 2),
    Column("three in streams", "ms", 2),
    Column("a step of 3C", "ms", 2),
    Column("0C/0L", "s", 3),
    Column("3C/2L", "s", 3),
    Column("ready", "s", 0),
)


@dataclass(frozen=True, slots=True)
class Played:
    """Recorded calls of one way: the denoiser in both halves, and every ControlNet with its stream."""

    engine: StepEngine
    denoiser: Any
    nets: list[Any]
    streams: list[Any]

    def unet(self) -> None:
        self.denoiser.replay(lambda: None)

    def net(self) -> None:
        self.nets[0].replay(lambda: None)

    def all_nets(self) -> None:
        """Beside each other; the current stream waits for all of them."""
        self._start()
        self._wait()

    def step(self) -> None:
        """As in the loop: ControlNets beside the first half, the second half after them."""
        self._start()
        self.denoiser.replay(self._wait)

    def _start(self) -> None:
        for recording, stream in zip(self.nets, self.streams, strict=True):
            if stream is None:
                recording.replay(lambda: None)
                continue
            stream.wait_stream(cuda.current_stream())
            with cuda.stream(stream):
                recording.replay(lambda: None)

    def _wait(self) -> None:
        for stream in self.streams:
            if stream is not None:
                cuda.current_stream().wait_stream(stream)


@contextmanager
def ready(bench: Bench, way: SomeWay) -> Iterator[Played]:
    """Networks of their own, prepared and recorded in this way."""
    AUTOTUNER.off = OPERATIONS - way.chosen
    options = None if bench.is_tiny else AUTOTUNE_OPTIONS if way.is_tuned else DEFAULT_OPTIONS
    compute = CudaGraphExecutor(options, is_lean=way.is_lean)
    models = copied(bench.models)
    engine, loras = bench.engine(compute, models)
    together(engine, [bench.request(MOST, num_steps=3)])
    workers = [one for one in engine.add_ons[1]._workers.values() if isinstance(one, StreamWorker)]  # type: ignore[attr-defined]
    recordings = [next(iter(one._calls.values()))._pass for one in workers]
    denoiser = next(reversed(compute._calls.values()))._passes[0]
    try:
        yield Played(engine, denoiser, recordings, [one._stream for one in workers])
    finally:
        loras.close()
        AUTOTUNER.off = frozenset()


def measured_ways(bench: Bench, names: list[str], limit: Limit) -> Table:
    """A row for every way that fits into the time."""
    rows = []
    for name in names:
        way = WAYS[name]
        if limit.allows(way.seconds, name):
            with _said(name), _at_most(2 * way.seconds):
                rows.append(_row(bench, name, way))
        gc.collect()
        if cuda.is_available():
            cuda.empty_cache()
    return Table("Ways to compute a step", COLUMNS, tuple(rows), "images: medians of three, from the prompt to latents")


def _row(bench: Bench, name: str, way: SomeWay) -> tuple[Any, ...]:
    begin_s = now_s()
    with ready(bench, way) as played:
        ready_s = now_s() - begin_s
        steps = [play_ms(one) for one in (played.unet, played.net, played.all_nets, played.step)]
        say(name, "denoiser, net, three nets, step:", *(f"{one:.2f} ms" for one in steps), f"ready in {ready_s:.0f} s")
        images = [_image_s(bench, played.engine, kind) for kind in (Kind(0, 0), MOST)]
        say(
            name,
            "0C/0L, 3C/2L:",
            *(f"{one:.3f} s" for one in images),
            f"prepare {_prepare_ms(bench, played.engine):.1f} ms",
        )
    return (name, *steps, *images, ready_s)


def _prepare_ms(bench: Bench, engine: StepEngine) -> float:
    """From the prompt to the first step: the text encoders, the scheduler, the noise."""
    times = []
    for _ in range(4):
        begin_s = now_s()
        engine.family.prepare(bench.request(Kind(0, 0)))
        times.append((now_s() - begin_s) * 1e3)
    return median(times)


def _image_s(bench: Bench, engine: StepEngine, kind: Kind) -> float:
    together(engine, [bench.request(kind, num_steps=3)])
    return median(together(engine, [bench.request(kind)])[0] for _ in range(1 if bench.is_tiny else 3))


def profile_tables(bench: Bench, name: str) -> Iterator[Table]:
    """Where the time of a step goes, for the denoiser and for a ControlNet."""
    with ready(bench, WAYS[name]) as played:
        flop = {"the denoiser": counted_unet, "a ControlNet": counted_net}
        for (what, count), play in zip(flop.items(), (played.unet, played.net), strict=True):
            kernels = profiled(play)
            for one in kernels[:25]:
                print(_line(one), flush=True)
            operations = {} if bench.is_tiny else count()
            yield time_table(f"Where a step of {what} goes, {name}", kernels, play_ms(play), operations)


def counted_unet() -> dict[str, float]:
    """Both rows of a request."""
    size = FULL_SIZE["sdxl"]
    network, inputs = size.network("meta"), size.inputs(2, {"device": "meta", "dtype": torch.bfloat16})
    return counted(lambda: network(**inputs))


def counted_net() -> dict[str, float]:
    """The same of a ControlNet, whose image is embedded before."""
    inputs = FULL_SIZE["sdxl"].inputs(2, {"device": "meta", "dtype": torch.bfloat16})
    with torch.device("meta"):
        net = import_module("diffusers").ControlNetModel(**FULL_SHAPE).to(torch.bfloat16)
        net.controlnet_cond_embedding = torch.nn.Identity()
        image = torch.empty(2, FULL_SHAPE["block_out_channels"][0], 128, 128, dtype=torch.bfloat16)
    return counted(lambda: net(**inputs, controlnet_cond=image))


def _line(one: Kernel) -> str:
    return f"{one.time_us / 1e3:9.3f} ms {one.num_calls:6.0f}x  {one.name[:110]}"


@contextmanager
def _said(name: str) -> Iterator[None]:
    """One way that fails does not end the others."""
    try:
        yield
    except Exception as problem:
        say(name, "FAILED", repr(problem)[:600])


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Give up after so many, in the main thread."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"not done in {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(round(seconds))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
