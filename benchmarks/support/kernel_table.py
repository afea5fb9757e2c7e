"""Where the time of a call on an accelerator goes: kernels by kind, rates they reach, and ways that were chosen."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

from takeup.core.report import Column, Table
from takeup.serving.diffusion.execution.autotune import TunedChoice

GAPS = "between kernels"
KINDS = {
    "norm": r"norm|^_(sum|finish|apply)$|moments",
    "gate": r"gelu|^_gate$",
    "attention": r"sdpa|flash|fmha|attend|^_join$",
    "convolution": r"fprop|implicit_gemm|cask|(?<!2d_)nhwc|^_gather$|aten::.*conv",
    "product": r"nvjet|gemm|gemv|cutlass|^_multiply$|aten::(addmm|mm|bmm|linear|baddbmm)",
    "memory": r"copy|memcpy|memset|index|cat|fill|elementwise|upsample|triton_poi|aten::(add|mul|cat|empty)",
}
COUNTED = {"convolution": "convolution", "bmm": "attention", "attention": "attention", "mm": "product"}
"""How names of counted operations say their kind; the first that is in the name. Networks have no other `bmm`."""
cuda: Any = torch.cuda


class Limit:
    """Seconds that a run may take. What would not end in time is left out, and said so."""

    def __init__(self, seconds: float) -> None:
        self._end_s = time.perf_counter() + seconds

    def allows(self, seconds: float, what: str) -> bool:
        """Whether so many are left."""
        left_s = self._end_s - time.perf_counter()
        if left_s < seconds:
            print(f"left out: {what} takes about {seconds:.0f} s, {left_s:.0f} are left", file=sys.stderr, flush=True)
        return left_s >= seconds


@dataclass(frozen=True, slots=True)
class Kernel:
    """All calls of a kernel in one call of the network."""

    name: str
    num_calls: float
    time_us: float


def kind_of(name: str) -> str:
    """What a kernel of this name does; the first kind that fits."""
    return next((kind for kind, words in KINDS.items() if re.search(words, name, re.IGNORECASE)), "other")


def profiled(play: Callable[[], object], num_calls: int = 3) -> list[Kernel]:
    """Kernels of a call, the longest first. Without an accelerator, operations on the CPU."""
    has_cuda = cuda.is_available()
    play()
    with profile(activities=[ProfilerActivity.CUDA if has_cuda else ProfilerActivity.CPU]) as seen:
        for _ in range(num_calls):
            play()
        if has_cuda:
            cuda.synchronize()
    times = {
        one.key: one.self_device_time_total if has_cuda else one.self_cpu_time_total for one in seen.key_averages()
    }
    calls = {one.key: one.count for one in seen.key_averages()}
    found = [Kernel(name, calls[name] / num_calls, time_us / num_calls) for name, time_us in times.items()]
    return sorted((one for one in found if one.time_us > 0), key=lambda one: -one.time_us)


def play_ms(play: Callable[[], object], num_rounds: int = 10) -> float:
    """Milliseconds of a call, from the first to the last of its kernels: the best of two series."""
    play()
    return min(_series_ms(play, num_rounds) for _ in range(2))


def _series_ms(play: Callable[[], object], num_rounds: int) -> float:
    if not cuda.is_available():
        begin_s = time.perf_counter()
        play()
        return (time.perf_counter() - begin_s) * 1e3
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(num_rounds):
        play()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / num_rounds


@torch.no_grad()
def counted(call: Callable[[], object]) -> dict[str, float]:
    """Operations of a call by kind. On the device `meta` nothing is computed for it."""
    with FlopCounterMode(display=False) as counter:
        call()
    found: dict[str, float] = {}
    for operation, flop in counter.get_flop_counts()["Global"].items():
        kind = next((kind for word, kind in COUNTED.items() if word in str(operation)), "other")
        found[kind] = found.get(kind, 0.0) + flop
    return found


def by_kind(kernels: Iterable[Kernel]) -> dict[str, Kernel]:
    """Sums, under the name of the kind."""
    sums: dict[str, Kernel] = {}
    for one in kernels:
        kind = kind_of(one.name)
        old = sums.get(kind, Kernel(kind, 0, 0))
        sums[kind] = Kernel(kind, old.num_calls + one.num_calls, old.time_us + one.time_us)
    return dict(sorted(sums.items(), key=lambda item: -item[1].time_us))


def time_table(title: str, kernels: Sequence[Kernel], whole_ms: float, flop: Mapping[str, float]) -> Table:
    """Kinds of kernels, their share of the whole call, and the rate of those whose operations were counted."""
    rows: list[tuple[Any, ...]] = []
    for kind, one in by_kind(kernels).items():
        tera = flop.get(kind, 0.0) / 1e12
        rate = tera / (one.time_us / 1e6) if tera else None
        rows.append((kind, round(one.num_calls), one.time_us / 1e3, one.time_us / 1e3 / whole_ms, tera or None, rate))
    gaps_ms = max(0.0, whole_ms - sum(one.time_us for one in kernels) / 1e3)
    rows.append((GAPS, None, gaps_ms, gaps_ms / whole_ms, None, None))
    tera = sum(flop.values()) / 1e12
    rows.append(("all", None, whole_ms, 1.0, tera or None, tera / (whole_ms / 1e3) if tera else None))
    columns = (
        Column("kind"),
        Column("kernels", "", 0),
        Column("time", "ms", 3),
        Column("share", "", 3),
        Column("operations", "TFLOP", 3),
        Column("rate", "TFLOP/s", 0),
    )
    return Table(title, columns, tuple(rows), "operations of the whole network; rows without a text are not computed")


def choices_table(choices: Iterable[TunedChoice]) -> Table:
    """What was chosen, beside the usual way."""
    rows = [
        (one.operation, _sizes(one.shape), one.way, one.times_us.get(one.way), next(iter(one.times_us.values()), None))
        for one in choices
    ]
    columns = Column("operation"), Column("sizes"), Column("way"), Column("time", "us", 1), Column("usual", "us", 1)
    return Table("Ways that were chosen by measuring", columns, tuple(rows))


def _sizes(shape: Any) -> str:
    """Sizes of all tensors in what a choice depends on."""
    return " ".join(re.sub(r"\D+", "x", one).strip("x") for one in re.findall(r"\(\((\d+(?:, \d+)*)\),", str(shape)))
