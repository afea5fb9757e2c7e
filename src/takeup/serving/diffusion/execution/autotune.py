"""Autotuning: several implementations of an operation, the fastest of which is measured once per shape and cached.

How it works. An operation has several implementations: libraries, Triton kernels, other block sizes. The first is the
default, used where nothing is measured. When an operation meets a new shape on a CUDA device, every implementation is
run on the actual tensors: one that fails, or whose result differs from the default, is rejected, and the fastest of the
others is cached. Calls are repeated inside a CUDA graph, because a kernel of some microseconds ends before the next one
is launched. Nothing is measured during graph capture; warm-up runs come before that, and choices are made then.
"""

import logging
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from takeup.serving.diffusion.execution.cuda_graph import CAPTURE_LOCK

LOG = logging.getLogger(__name__)
NUM_CALLS, NUM_ROUNDS = 10, 3
MAX_RELATIVE_ERROR = 0.02
"""The most that ways may differ, as a share of the answer: all of them round to 16 bits in between."""

Implementation = Callable[..., torch.Tensor]
cuda: Any = torch.cuda  # whose functions are not annotated


@dataclass(frozen=True, slots=True)
class TunedChoice:
    """The result for an operation on one shape: the chosen implementation, and microseconds of every valid one."""

    operation: str
    shape: Hashable
    way: str
    times_us: Mapping[str, float]


class Autotuner:
    """The choices so far. Operations in `off` always use the default implementation."""

    def __init__(self) -> None:
        self.off: frozenset[str] = frozenset()
        self._made: dict[tuple[str, Hashable], TunedChoice] = {}

    @property
    def made(self) -> list[TunedChoice]:
        """All choices, in the order in which they were made."""
        return list(self._made.values())

    def forget(self) -> None:
        """Clear the cache, so that everything is measured again."""
        self._made.clear()

    def way(
        self,
        operation: str,
        shape: Hashable,
        ways: Mapping[str, Implementation],
        arguments: Callable[[], tuple[Any, ...]],
    ) -> Implementation:
        """The fastest implementation; the first is the default. `arguments` creates fresh inputs for every trial."""
        usual = next(iter(ways.values()))
        if operation in self.off or len(ways) == 1:
            return usual
        if (operation, shape) not in self._made:
            if not _can_measure():
                return usual
            with CAPTURE_LOCK.exclusive():
                self._made[operation, shape] = _measured(operation, shape, ways, arguments)
        return ways.get(self._made[operation, shape].way, usual)


AUTOTUNER = Autotuner()
"""Those of this process: what is fastest is a property of the device."""


def shape_key(*tensors: torch.Tensor) -> Hashable:
    """Cache key of tensors: shape, strides and dtype."""
    return tuple((tuple(one.shape), one.stride(), one.dtype) for one in tensors)


def _measured(
    operation: str, shape: Hashable, ways: Mapping[str, Implementation], arguments: Callable[[], tuple[Any, ...]]
) -> TunedChoice:
    usual = next(iter(ways))
    truth = ways[usual](*arguments()).clone()
    times_us: dict[str, float] = {}
    for name, way in ways.items():
        try:
            if _is_right(way(*arguments()), truth):
                times_us[name] = _time_us(way, arguments())
            else:
                LOG.warning("%s: the way %r answers otherwise than %r and is not used", operation, name, usual)
        except Exception as problem:  # on any failure the default remains
            LOG.info("%s: the way %r cannot: %s", operation, name, problem)
    return TunedChoice(operation, shape, min(times_us, key=times_us.__getitem__, default=usual), times_us)


def _is_right(answer: torch.Tensor, truth: torch.Tensor) -> bool:
    """Whether the relative error is within `MAX_RELATIVE_ERROR`; False for NaN."""
    return bool((answer.float() - truth.float()).norm() <= MAX_RELATIVE_ERROR * truth.float().norm())


def _can_measure() -> bool:
    return bool(cuda.is_available() and not cuda.is_current_stream_capturing())


def _time_us(way: Implementation, given: tuple[Any, ...]) -> float:
    """Microseconds of one call: the best of several rounds."""
    stream = cuda.Stream()
    stream.wait_stream(cuda.current_stream())
    with cuda.stream(stream):
        way(*given)  # warm-up in this stream before capture
        stream.synchronize()
        graph = cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(NUM_CALLS):
                way(*given)
        finally:
            graph.capture_end()
        graph.replay()
        best_us = min(_replay_us(graph) for _ in range(NUM_ROUNDS))
    cuda.current_stream().wait_stream(stream)
    return best_us / NUM_CALLS


def _replay_us(graph: Any) -> float:
    begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3
